"""Seats: the panel that each conversation of a batch is in, side by side, so that one library call serves all.

A conversation that is decoded writes one key at a time into its current panel of 256. The panels of all seated
conversations stand in one tensor; what lies before them is read from each conversation's own copy. That copy is brought
up to date from the raw rows when a panel is left, not at every token, and so never sees a rejected draft.
"""

import torch
from torch import Tensor

from ..attention.panels import PANEL_KEYS
from ..models.config import DecoderConfig
from ..rotated import RotatedSequence, rotated
from ..sequence import Sequence


class Seats:
    """A fixed number of seats. Shape of `panels`: `[num_layers, seats, K|V, kv_heads, 256, head_dim]`."""

    def __init__(self, config: DecoderConfig, dtype: torch.dtype, seats: int) -> None:
        shape = (config.num_layers, seats, 2, config.num_kv_heads, PANEL_KEYS, config.head_dim)
        self.panels: Tensor = torch.zeros(shape, dtype=dtype)
        self._seated: list[RotatedSequence] = []
        self._copied: list[int] = []
        """Positions at the start of each that its own copy has."""
        self._panel: list[int] = []
        """First position of the panel that each seat holds."""

    def number(self, sequence: Sequence) -> int:
        """Give the seat of a seated sequence; it may change whenever one leaves."""
        return self._seated.index(rotated(sequence))

    def take(self, sequence: Sequence, length: int) -> None:
        """Make sure that a sequence of `length` positions has a seat with the panel that the next one is in.

        Effects: room for that panel is reserved; a panel that was left is written to the sequence's own copy. Raises
        `TierFull`.
        """
        panel, sequence = length // PANEL_KEYS * PANEL_KEYS, rotated(sequence)
        if sequence in self._seated:
            at = self._seated.index(sequence)
            if self._panel[at] == panel:
                return
            self._copy_out(at, length)
        sequence.reserve(panel + PANEL_KEYS)
        if sequence not in self._seated:
            if len(self._seated) == self.panels.shape[1]:
                raise RuntimeError("all seats are taken")
            at = len(self._seated)
            self._seated.append(sequence)
            self._copied.append(length)
            self._panel.append(-1)
        for layer in range(self.panels.shape[0]):
            keys, values = sequence.keys_values(layer, panel, panel + PANEL_KEYS)
            self.panels[layer, at, 0] = keys[:, :PANEL_KEYS]
            self.panels[layer, at, 1] = values[:, :PANEL_KEYS]
        self._panel[at] = panel

    def leave(self, sequence: Sequence, length: int | None) -> None:
        """Free the seat of a sequence, if it has one, and bring its own copy up to `length`; None where it is dropped.

        The sequence in the last seat moves into the free one.
        """
        if sequence not in self._seated:
            return
        at, last = self.number(sequence), len(self._seated) - 1
        if length is not None:
            self._copy_out(at, length)
        if at != last:
            self.panels[:, at] = self.panels[:, last]
        self._seated[at], self._copied[at], self._panel[at] = self._seated[-1], self._copied[-1], self._panel[-1]
        del self._seated[-1], self._copied[-1], self._panel[-1]

    def _copy_out(self, at: int, length: int) -> None:
        """Write what came since the last time to a sequence's own copy, from its raw rows."""
        sequence, size = self._seated[at], self._seated[at].pool.geometry.block_size
        sequence.reserve(length)
        first, (full, rest) = self._copied[at] // size, divmod(length, size)
        if first < full:
            sequence.heat_blocks(first, full)
        if rest and self._copied[at] < length:
            sequence.heat_rows(full * size, rest)
        self._copied[at] = length
