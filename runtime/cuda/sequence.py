"""K and V of one live sequence on a device: raw rows in the pool, and nothing beside them.

Kernels read the pages and turn rows on their way in. So nothing has to be made before a step, and what the host calls
hot is here no more than how far the rows go.
"""

from collections.abc import Sequence as Items
from functools import partial
from typing import Final

from torch import Tensor

from ...cybergraph.errors import CacheDiscontinuity
from ..models.decoder import Decoder
from ..rows import ARCHIVED
from ..sequence import Sequence
from .cache import Part
from .workspace import Workspace


class DeviceSequence(Sequence):
    """See `Sequence`."""

    live_bytes: Final = 0

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace.config, workspace.pool)
        self.workspace = workspace

    def reserve(self, length_tokens: int) -> None:
        """See `Sequence`: there is nothing to make room for."""

    def forward(self, decoder: Decoder, tokens: Tensor, start: int, rows: int) -> Tensor:
        """See `Sequence`. A row alone goes the fast way, and is provisional; padding is left out."""
        part, before = self.part(start, tokens[:rows].tolist()), None
        if self.coming is None:
            self.begin(part)
        else:
            before = partial(self._begin_layer, start=start)
        provisional = tokens.shape[0] == 1
        hidden = self.workspace.run(decoder, [part], provisional=provisional, writes=not self.frozen, before=before)
        if not self.frozen:
            self.wrote(part)
        return hidden

    def part(self, start: int, tokens: Items[int]) -> Part:
        """Say what goes through a step. Raises `CacheDiscontinuity` where an archived block would be read."""
        size, end = self.pool.geometry.block_size, start + len(tokens)
        for window in {kind.window for kind in self.config.layers}:
            first = 0 if window is None else max(0, start - window + 1)
            if ARCHIVED in self.table[first // size : -(-end // size)]:
                raise CacheDiscontinuity(
                    f"positions {first} to {end} are read, and a block of them is archived",
                    hint="bring it back from the store first",
                    expected=first, got=end,
                )  # fmt: skip
        return Part(self.table, start, tuple(tokens))

    def begin(self, part: Part) -> None:
        """Have all rows before a part. Unless frozen, what stood where it begins or after is superseded.

        Raises `CacheDiscontinuity` beyond the end, and as `Coming.take`.
        """
        for layer in range(self.config.num_layers):
            self._begin_layer(layer, part.start)

    def _begin_layer(self, layer: int, start: int) -> None:
        self._settle(layer)
        self._require_end(layer, start)
        if not self.frozen:
            self._ends[layer] = start

    def wrote(self, part: Part) -> None:
        """Say that the rows of a part are there."""
        self._ends = [part.end] * self.config.num_layers

    def _heat_layer(self, layer: int, start: int, end: int) -> None:
        self._require_end(layer, start)
        self._ends[layer] = end
