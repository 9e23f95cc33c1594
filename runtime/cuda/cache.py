"""K and V of one step on a device: a `KvCache` for `Decoder.forward` over pages.

A step has rows of one sequence or of several, at any positions: its parts. Where rows go and what they see is worked
out once, on the host, as one run of integers; the layers only read it. So nothing that changes from step to step is in
what is launched, and a step of the same form can be launched again as it was captured (`graphs`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Protocol

from torch import Tensor

from ..geometry import Geometry
from ..models.config import DecoderConfig
from .support import Attention

FIELDS_OF_ROWS: Final = 3
FIELDS_OF_PARTS: Final = 3


class AttentionKernels(Protocol):
    """Attention over pages: `kernels.launch` and `reference` are two."""

    def append_rows(
        self, kv: Tensor, k: Tensor, v: Tensor, tables: Tensor, requests: Tensor, positions: Tensor,
        attention: Attention,
    ) -> None:  # fmt: skip
        """Write raw rows to the slots of their positions."""

    def paged_prefill(
        self, q: Tensor, kv: Tensor, tables: Tensor, starts: Tensor, lengths: Tensor, bases: Tensor, cos: Tensor,
        sin: Tensor, attention: Attention,
    ) -> Tensor:  # fmt: skip
        """Attend from rows in canonical order: a row's bits depend on its sequence alone."""

    def paged_decode(
        self, q: Tensor, kv: Tensor, tables: Tensor, lengths: Tensor, bases: Tensor, cos: Tensor, sin: Tensor,
        attention: Attention,
    ) -> Tensor:  # fmt: skip
        """Attend from the last row of each sequence, fast."""


def attentions_of(config: DecoderConfig, geometry: Geometry) -> tuple[Attention, ...]:
    """Describe what each layer computes. What kernels do not take is for `support.require_supported` to say."""
    g = geometry
    return tuple(
        Attention(
            heads=config.num_heads, kv_heads=g.num_kv_heads, head_dim=g.head_dim, page_size=g.block_size,
            dtype=g.dtype, scale=config.scale, rotary_dims=config.rotary_dims if kind.rotated else 0,
            interleaved=config.is_interleaved, window=kind.window, scheme=g.scheme,
        )
        for kind in config.layers
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one sequence in a step. The table has rows for all of them."""

    table: list[int]
    start: int
    """Position of the first row."""
    tokens: tuple[int, ...]

    @property
    def end(self) -> int:
        """Position after the last row."""
        return self.start + len(self.tokens)


def numbers_of(parts: Sequence[Part]) -> list[int]:
    """Say where the rows of a step go and what they see, for `Numbers`."""
    return [
        *(token for part in parts for token in part.tokens),
        *(position for part in parts for position in range(part.start, part.end)),
        *(number for number, part in enumerate(parts) for _ in part.tokens),
        *(part.start for part in parts),
        *(part.end for part in parts),
        *(0 for _ in parts),
    ]


class Numbers:
    """What `numbers_of` gave, on the device. Views of one int32 tensor.

    >>> import torch
    >>> parts = [Part([5], 3, (70, 71)), Part([6], 0, (72,))]
    >>> numbers = Numbers(torch.tensor(numbers_of(parts), dtype=torch.int32), rows=3, parts=2)
    >>> numbers.positions.tolist(), numbers.requests.tolist(), numbers.lengths.tolist()
    ([3, 4, 0], [0, 0, 1], [5, 1])
    """

    def __init__(self, memory: Tensor, *, rows: int, parts: int) -> None:
        self.memory = memory
        self.tokens, self.positions, self.requests = memory[: FIELDS_OF_ROWS * rows].view(FIELDS_OF_ROWS, rows)
        """[rows] each: token, position and number of the part of each row."""
        self.starts, self.lengths, self.bases = memory[FIELDS_OF_ROWS * rows :].view(FIELDS_OF_PARTS, parts)
        """[parts] each: first position, position after the last, and where the first key stands."""


@dataclass(frozen=True, slots=True)
class Form:
    """What of a step decides what is launched: two of one form differ in numbers alone."""

    rows: tuple[int, ...]
    """Of each part."""
    width: int
    """Blocks of the page tables that are looked at."""
    provisional: bool = False
    """Single rows by the fast way, whose bits differ from those of canonical ones."""
    writes: bool = True
    """Whether K and V are kept; else they stand there already, and the step is for its output only."""

    @property
    def single(self) -> bool:
        """Whether each part is one row."""
        return set(self.rows) == {1}

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Give runs of neighbouring parts with the same number of rows: first part, parts, rows of each."""
        first = 0
        for rows, parts in groupby(self.rows):
            count = len(list(parts))
            yield first, count, rows
            first += count


class PagedCache:
    """See `KvCache`: the rows of one step, in the order of its parts. No padding: a row's bits need none."""

    def __init__(
        self, kernels: AttentionKernels, pages: Tensor, attentions: Sequence[Attention], turns: tuple[Tensor, Tensor],
        form: Form, numbers: Numbers, tables: Tensor, before: Callable[[int], None] | None = None,
    ) -> None:  # fmt: skip
        """Prepare a step. `before` is called for each layer right before it is computed.

        Shapes: pages as `DevicePool.rows`; turns [positions, rotary_dims / 2] float32, cosines and sines; tables int32
        [parts, width].
        """
        self._before = before
        self._kernels, self._pages, self._attentions, self._turns = kernels, pages, attentions, turns
        self._form, self._numbers, self._tables = form, numbers, tables

    def attend(self, layer: int, start: int, qk: Tensor, v: Tensor, rows: int) -> Tensor:  # noqa: ARG002
        """See `KvCache`. All rows are real, and each has its position in the step's numbers."""
        if self._before is not None:
            self._before(layer)
        attention, pages, at = self._attentions[layer], self._pages[:, layer], self._numbers
        q = qk[:, : attention.heads]
        if self._form.writes:
            k = qk[:, attention.heads :]
            self._kernels.append_rows(pages, k, v, self._tables, at.requests, at.positions, attention)
        if self._form.provisional:
            out = self._kernels.paged_decode(
                q, pages, self._tables, at.lengths, at.bases, *self._turns, attention
            )  # fmt: skip
            return out.flatten(1)
        result, row = q.new_empty(q.shape[0], attention.heads * attention.head_dim), 0
        for first, parts, length in self._form.runs():
            here, last = slice(first, first + parts), row + parts * length
            result[row:last] = self._kernels.paged_prefill(
                q[row:last].view(parts, length, *q.shape[1:]), pages, self._tables[here], at.starts[here],
                at.lengths[here], at.bases[here], *self._turns, attention,
            ).flatten(0, 1).flatten(1)  # fmt: skip
            row = last
        return result
