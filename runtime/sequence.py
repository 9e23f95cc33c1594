"""The K and V of one live sequence: raw rows in the pool by page table, and what attention reads of them.

The raw rows are the truth: they are position-free, shared between sequences and stored. Whatever else attention reads
can be made again from them: on the host a rotated copy (`rotated`), on a device nothing.
"""

from abc import ABC, abstractmethod
from copy import copy
from typing import Protocol, Self

from torch import Tensor

from ..cybergraph.errors import CacheDiscontinuity
from .models.config import DecoderConfig
from .models.decoder import Decoder
from .pool import BlockPool
from .rings.window import Stage, readers, unread_blocks
from .rows import ARCHIVED
from .tiers.lease import Miss


class Coming(Protocol):
    """Raw rows of blocks in the page table that are still on their way from somewhere."""

    def take(self, layer: int) -> tuple[int, int] | None:
        """Wait for what a layer reads of them, and give its positions, first and last (excluded).

        None where there is nothing that was not given before. Raises what made it end.
        """

    def finish(self) -> None:
        """Wait until all of it is here, whether a layer reads it or not. Harmless twice. Raises as `take`."""

    def cut(self) -> Miss | None:
        """After an error: end where the first block does not come whole, and say why. None where that was not why.

        The sequence then goes back to the blocks before, and takes each layer anew.
        """

    def stop(self) -> bool:
        """Stop, give back what is held for it, and say whether all of it is here."""


class Sequence(ABC):
    """Cache of one sequence. Positions are contiguous from 0; the page table covers them block by block."""

    def __init__(self, config: DecoderConfig, pool: BlockPool) -> None:
        self.config = config
        self.pool = pool
        self.table: list[int] = []
        """Pool row of each block, or `ARCHIVED`."""
        self.frozen = False
        """While true, a step keeps what is there: it is repeated for its output only."""
        self.coming: Coming | None = None
        """What is waited for layer by layer, each right before it attends."""
        self._ends = [0] * config.num_layers
        """Positions whose rows each layer has."""

    @property
    @abstractmethod
    def live_bytes(self) -> int:
        """Memory beside the pool's rows, as far as it is set aside."""

    @abstractmethod
    def reserve(self, length_tokens: int) -> None:
        """Make room for `length_tokens` positions, padding rows included. Raises `TierFull`."""

    @abstractmethod
    def forward(self, decoder: Decoder, tokens: Tensor, start: int, rows: int) -> Tensor:
        """Run token rows that stand at `start` on over this cache; the first `rows` are real, the rest padding.

        What stood at `start` or after is superseded. Shapes: tokens [n] int64, on the host -> [rows, hidden_size], good
        until the next step. Effects: K and V of the real rows are kept, unless `frozen`. Raises `CacheDiscontinuity`
        beyond the end, and as `Coming.take`.
        """

    @abstractmethod
    def _heat_layer(self, layer: int, start: int, end: int) -> None:
        """Have what attention reads of a layer's raw rows, from the end that it has on."""

    def extend_table(self, length_tokens: int) -> None:
        """Allocate pool rows until the table covers `length_tokens`. Raises `TierFull`."""
        while len(self.table) * self.pool.geometry.block_size < length_tokens:
            self.table.append(self.pool.allocate())

    def truncate_table(self, blocks: int) -> None:
        """Give back the rows of all blocks from index `blocks` on."""
        while len(self.table) > blocks:
            self.pool.release(self.table.pop())
        length = blocks * self.pool.geometry.block_size
        self._ends = [min(end, length) for end in self._ends]

    def beginning(self, length_tokens: int, blocks: int) -> Self:
        """Describe the first `length_tokens` positions over the same memory, with the first `blocks` rows.

        Only one of the two may be used from then on; the users of pool rows are not counted anew.
        """
        short = copy(self)
        short.table = self.table[:blocks]
        short._ends = [min(end, length_tokens) for end in self._ends]  # noqa: SLF001 - its own kind
        return short

    def clear_after(self, length_tokens: int) -> None:  # noqa: B027 - where nothing behind the end is read
        """Leave nothing of what was computed behind the first `length_tokens` positions where it could be read."""

    def _require_end(self, layer: int, position: int) -> None:
        if position > self._ends[layer]:
            raise CacheDiscontinuity(
                f"layer {layer}: position {position} does not follow, {self._ends[layer]} is next",
                layer=layer, expected=self._ends[layer], got=position,
            )  # fmt: skip

    def _settle(self, layer: int) -> None:
        """Have the layer's rows that are on their way."""
        if self.coming is not None and (span := self.coming.take(layer)) is not None:
            self._heat_layer(layer, *span)

    def heat_blocks(self, first: int, last: int) -> None:
        """Have what attention reads of blocks `first` to `last` (excluded), whose raw rows are there.

        A layer with a window takes only what is read from then on; blocks that no layer takes may be `ARCHIVED`.
        """
        if first < last:
            size = self.pool.geometry.block_size
            self._heat_all(first * size, last * size)

    def heat_rows(self, start: int, count: int) -> None:
        """Have what attention reads of `count` rows of one block. `start` is the block's first position."""
        self._heat_all(start, start + count)

    def _heat_all(self, start: int, end: int) -> None:
        for layer in range(self.config.num_layers):
            self._settle(layer)
            self._heat_layer(layer, start, end)

    def settle(self) -> None:
        """Have all rows that are on their way. Raises as `Coming.take`."""
        if self.coming is not None:
            self.coming.finish()
            for layer in range(self.config.num_layers):
                self._settle(layer)
            self.coming = None

    def stage(self, block: int, length_tokens: int) -> Stage:
        """Say where a block is for what comes after `length_tokens` tokens."""
        if self.table[block] == ARCHIVED:
            return Stage.ARCHIVED
        size, kinds = self.pool.geometry.block_size, self.config.layers
        reading = readers(kinds, block, block_size=size, length=length_tokens)
        return Stage.LIVE if len(reading) == len(kinds) else Stage.AGED

    def unread_blocks(self, blocks: int) -> int:
        """Count the leading blocks that no layer reads after `blocks` blocks: none where a layer sees everything."""
        size = self.pool.geometry.block_size
        return unread_blocks(self.config.layers, block_size=size, length=blocks * size)

    def archive(self, blocks: int) -> None:
        """Give back the rows of blocks that nothing reads after the first `blocks` ones, which are stored."""
        for block in range(self.unread_blocks(blocks)):
            row, self.table[block] = self.table[block], ARCHIVED
            self.pool.release(row)

    def release(self) -> None:
        """Give every pool row back."""
        self.truncate_table(0)
