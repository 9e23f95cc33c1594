"""The K and V of one live sequence: raw rows in the pool by page table, and rotated rows that attention reads.

The raw rows are the truth: they are position-free, shared between sequences and stored. The rotated ones can always be
made again from them: at full length for layers that see everything, in a ring for layers with a window.
"""

from copy import copy
from typing import Protocol, Self

import torch
from torch import Tensor

from ..cybergraph.errors import CacheDiscontinuity
from .attention.panels import key_span, panel_attention, row_attention
from .attention.source import KeyValueSource
from .hot import FullCopy, HotMemory
from .models.config import DecoderConfig
from .pool import ARCHIVED, Pool
from .quant import packed
from .ringcopy import RingCopy
from .rings.window import Stage, first_live, first_read, readers, unread_blocks
from .rope import Rotary


class Coming(Protocol):
    """Raw rows of blocks in the page table that are still on their way from somewhere."""

    def take(self, layer: int) -> tuple[int, int] | None:
        """Wait for what a layer reads of them, and give its positions, first and last (excluded).

        None where there is nothing that was not given before. Raises what made it end.
        """


class Sequence:
    """Cache of one sequence. Positions are contiguous from 0; the page table covers them block by block."""

    def __init__(self, config: DecoderConfig, rotary: Rotary, pool: Pool, memory: HotMemory) -> None:
        self.config = config
        self.rotary = rotary
        self.pool = pool
        self.table: list[int] = []
        """Pool row of each block, or `ARCHIVED`."""
        self.frozen = False
        """While true, `attend` keeps what is there: a step is repeated for its output only."""
        self.coming: Coming | None = None
        """What is waited for layer by layer, each right before it attends."""
        self._full = FullCopy(memory)
        self._rings = RingCopy(memory)
        self._ends = [0] * config.num_layers
        """Positions whose rows each layer has."""

    @property
    def live_bytes(self) -> int:
        """Memory of the rotated rows, as far as it is set aside."""
        return self._full.bytes + self._rings.bytes

    def reserve(self, length_tokens: int) -> None:
        """Make room for `length_tokens` positions, padding rows included. Raises `TierFull`."""
        self._full.reserve(length_tokens)

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

    def keys_values(self, layer: int, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Give rotated K, and V, of positions `first` to `last` (excluded), for other kernels than `attend`'s.

        Shapes: [kv_heads, last - first, head_dim]; views, good until something is written. Where the layer has no row,
        or no window of what comes next sees it, anything finite.
        """
        self._settle(layer)
        end = self._ends[layer]
        source = self._ready(layer, first_live(self.config.layers[layer].window, end), end)
        keys, values = source.keys_values(layer, first, last)
        return keys[:, : last - first], values[:, : last - first]

    def attend(self, layer: int, start: int, qk: Tensor, v: Tensor, rows: int) -> Tensor:
        """Write raw K and V of `rows` positions from `start`, then attend: one row fast, several in canonical order.

        Rows beyond `rows` are padding and not part of the sequence. What stood at `start` or after is superseded.
        Shapes: qk [n, heads + kv_heads, head_dim], v [n, kv_heads, head_dim] -> [n, heads * head_dim]. `start` is a
        block boundary, or `rows` is 1. Raises `CacheDiscontinuity` beyond the end, and as `Coming.take`.
        """
        self._settle(layer)
        kind, heads = self.config.layers[layer], self.config.num_heads
        self._require_end(layer, start)
        source = self._ready(layer, first_read(kind.window, start), self._ends[layer] if self.frozen else start)
        if not self.frozen:
            self._ends[layer] = start
            made = packed(self.pool.packing, qk, v, heads)
            self._store(layer, start, made.k[:rows], made.v[:rows])
            qk, v = made.qk, made.seen_v
        if kind.rotated:
            qk = self.rotary.rotate(qk, start)
        span = key_span(start, qk.shape[0], kind.window)
        if self.frozen:
            keys, values = source.keys_values(layer, *span)
        else:
            k = qk[:, heads:].transpose(0, 1)
            keys, values = source.extended(layer, start, k, v.transpose(0, 1), rows, span)
            self._ends[layer] = start + rows
        attend = row_attention if qk.shape[0] == 1 else panel_attention
        return attend(qk[:, :heads], keys, values, start - span[0], kind.window, self.config.scale)

    def _settle(self, layer: int) -> None:
        """Have the layer's rows that are on their way, rotated."""
        if self.coming is not None and (span := self.coming.take(layer)) is not None:
            self._heat_layer(layer, *span)

    def _require_end(self, layer: int, position: int) -> None:
        if position > self._ends[layer]:
            raise CacheDiscontinuity(
                f"layer {layer}: position {position} does not follow, {self._ends[layer]} is next",
                layer=layer, expected=self._ends[layer], got=position,
            )  # fmt: skip

    def _ready(self, layer: int, first: int, end: int) -> KeyValueSource:
        """Give the layer's source; a ring ends at `end` and holds all from `first` on, made again where it does not."""
        if self.config.layers[layer].window is None:
            return self._full
        if not self._rings.cut_to(layer, first, end):
            self._rings.restart(layer, first)
            self._heat(layer, first, end)
        return self._rings

    def _store(self, layer: int, start: int, k: Tensor, v: Tensor) -> None:
        """Write raw K and V, packed, to the pool."""
        size, rows = self.pool.geometry.block_size, k.shape[0]
        block, offset = divmod(start, size)
        full = 0 if offset else rows // size
        if full:
            where = self._where(block, block + full)
            shape = (full, size, *k.shape[1:])
            self.pool.rows[where, layer, 0] = k[: full * size].view(shape)
            self.pool.rows[where, layer, 1] = v[: full * size].view(shape)
        if rest := rows - full * size:
            row = self.pool.rows[self.table[block + full], layer]
            row[0, offset : offset + rest] = k[full * size :]
            row[1, offset : offset + rest] = v[full * size :]

    def _where(self, first: int, last: int) -> slice | Tensor:
        """Select the pool rows of blocks; neighbours as a slice, which reads in place instead of copying."""
        rows = self.table[first:last]
        if rows == list(range(rows[0], rows[0] + len(rows))):
            return slice(rows[0], rows[0] + len(rows))
        return torch.tensor(rows)

    def _heat(self, layer: int, start: int, end: int) -> None:
        """Make rotated rows of positions `start` to `end` from raw ones, after those that the layer has."""
        self._require_end(layer, start)
        self._ends[layer] = start
        if start < end:
            size, kind = self.pool.geometry.block_size, self.config.layers[layer]
            first, last = start // size, -(-end // size)
            if ARCHIVED in self.table[first:last]:
                raise CacheDiscontinuity(
                    f"layer {layer}: positions {start} to {end} are read, and a block of them is archived",
                    hint="bring it back from the store first",
                    layer=layer, expected=start, got=end,
                )  # fmt: skip
            rows, unpack = self.pool.rows[self._where(first, last), layer], self.pool.packing.unpack
            k, v = (unpack(rows[:, part].flatten(0, 1)[start - first * size : end - first * size]) for part in (0, 1))
            if kind.rotated:
                k = self.rotary.rotate(k, start)
            source: KeyValueSource = self._full if kind.window is None else self._rings
            source.keep(layer, start, k.transpose(0, 1), v.transpose(0, 1))
        self._ends[layer] = end

    def heat_blocks(self, first: int, last: int) -> None:
        """Make the rotated rows of blocks `first` to `last` (excluded) from their raw rows.

        A layer with a window takes only what is read from then on; blocks that no layer takes may be `ARCHIVED`.
        """
        if first < last:
            size = self.pool.geometry.block_size
            self._heat_all(first * size, last * size)

    def heat_rows(self, start: int, count: int) -> None:
        """Make the rotated rows of `count` rows of one block. `start` is the block's first position."""
        self._heat_all(start, start + count)

    def _heat_all(self, start: int, end: int) -> None:
        for layer in range(self.config.num_layers):
            self._settle(layer)
            self._heat_layer(layer, start, end)

    def _heat_layer(self, layer: int, start: int, end: int) -> None:
        self._require_end(layer, start)
        window, first = self.config.layers[layer].window, start
        if window is not None:
            live = first_live(window, end)
            if live > start or not self._rings.cut_to(layer, live, start):
                self._rings.restart(layer, live)
                self._ends[layer] = first = live
        self._heat(layer, first, end)

    def settle(self) -> None:
        """Have the rows of all layers that are on their way. Raises as `Coming.take`."""
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
        """Give every pool row and the rotated rows back."""
        self.truncate_table(0)
        self._full.release()
        self._rings.release()
