"""Steps that rows of several conversations share, on a device: see `runtime.steps`."""

from collections.abc import Sequence as Items
from typing import cast

import torch
from torch import Tensor

from ..models.decoder import Decoder
from ..sequence import Sequence
from ..steps.step import Span
from .sequence import DeviceSequence


class DeviceSeats:
    """Nobody needs a seat where kernels read each conversation's own pages."""

    def take(self, sequence: Sequence, length: int) -> None:
        """See `Seats`."""

    def leave(self, sequence: Sequence, length: int | None) -> None:
        """See `Seats`."""


class DeviceStep:
    """A forward over spans, each row canonical. Tables cover the spans before."""

    def __init__(self, decoder: Decoder, spans: Items[Span]) -> None:
        self._decoder = decoder
        self._spans = [*(span for span in spans if not span.seated), *(span for span in spans if span.seated)]

    def run(self) -> list[Tensor]:
        """Compute. Returns hidden states for each span, prompts first. Shapes: [tokens, hidden_size] each.

        Effects: all rows are in the pool, beyond what their conversations count as theirs.
        """
        sequences = [cast("DeviceSequence", span.sequence) for span in self._spans]
        parts = [each.part(span.start, span.tokens) for each, span in zip(sequences, self._spans, strict=True)]
        for sequence, part in zip(sequences, parts, strict=True):
            sequence.begin(part)
        hidden = sequences[0].workspace.run(self._decoder, parts)
        for sequence, part in zip(sequences, parts, strict=True):
            sequence.wrote(part)
        return list(torch.split(hidden, [len(part.tokens) for part in parts]))

    def settle(self, span: Span, rows: range) -> None:
        """See `Step`: they stand in the pool already, and others behind a conversation's end are written over."""
