"""The K and V of one live sequence: raw rows in the pool by page table, and a rotated copy that attention reads.

The raw rows are the truth: they are position-free, shared between sequences and stored. The hot copy is contiguous per
head and can always be made again from the rows.
"""

import torch
from torch import Tensor

from .attention.panels import PANEL_KEYS, panel_attention, row_attention
from .hot import HotMemory
from .models.config import DecoderConfig
from .pool import Pool
from .rope import Rotary


class Sequence:
    """Cache of one sequence. Positions are contiguous from 0; the page table covers them block by block."""

    def __init__(self, config: DecoderConfig, rotary: Rotary, pool: Pool, memory: HotMemory) -> None:
        self.config = config
        self.rotary = rotary
        self.pool = pool
        self._memory = memory
        self.table: list[int] = []
        """Pool row of each block."""
        self.frozen = False
        """While true, `attend` keeps what is there: a step is repeated for its output only."""
        self._hot: Tensor | None = None
        self._clean_tokens = 0
        """Positions of the hot copy that were cleared: attention reads whole panels, and a NaN left behind by another
        sequence would come through any mask."""

    def reserve(self, length_tokens: int) -> None:
        """Make room for `length_tokens` positions, padding rows included. Raises `TierFull`."""
        needed = -(-length_tokens // PANEL_KEYS) * PANEL_KEYS
        if needed <= self._clean_tokens:
            return
        if self._hot is None:
            self._hot = self._memory.take(needed)
        elif needed > self._hot.shape[3]:
            grown = self._memory.take(max(needed, 2 * self._hot.shape[3]))
            grown[:, :, :, : self._clean_tokens] = self._hot[:, :, :, : self._clean_tokens]
            self._memory.give_back(self._hot)
            self._hot = grown
        self._hot[:, :, :, self._clean_tokens : needed].zero_()
        self._clean_tokens = needed

    def extend_table(self, length_tokens: int) -> None:
        """Allocate pool rows until the table covers `length_tokens`. Raises `TierFull`."""
        while len(self.table) * self.pool.geometry.block_size < length_tokens:
            self.table.append(self.pool.allocate())

    def truncate_table(self, blocks: int) -> None:
        """Give back the rows of all blocks from index `blocks` on."""
        while len(self.table) > blocks:
            self.pool.release(self.table.pop())

    def attend(self, layer: int, start: int, qk: Tensor, v: Tensor, rows: int) -> Tensor:
        """Write raw K and V of `rows` positions from `start`, then attend: one row fast, several in canonical order.

        Rows beyond `rows` are padding and go to the hot copy only. Shapes: qk [n, heads + kv_heads, head_dim],
        v [n, kv_heads, head_dim] -> [n, heads * head_dim]. `start` is a block boundary, or `rows` is 1.
        """
        kind, heads = self.config.layers[layer], self.config.num_heads
        if not self.frozen:
            self._store(layer, start, qk[:rows, heads:], v[:rows])
        if kind.rotated:
            qk = self.rotary.rotate(qk, start)
        if not self.frozen:
            self._heat(layer, start, qk[:, heads:], v)
        attend = row_attention if qk.shape[0] == 1 else panel_attention
        keys, values = self._layer(layer)
        return attend(qk[:, :heads], keys, values, start, kind.window, self.config.scale)

    def _store(self, layer: int, start: int, k: Tensor, v: Tensor) -> None:
        """Write raw K and V to the pool."""
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

    def _heat(self, layer: int, start: int, k: Tensor, v: Tensor) -> None:
        """Write rotated K, and V, to the hot copy."""
        end = start + k.shape[0]
        keys, values = self._layer(layer)
        keys[:, start:end] = k.transpose(0, 1)
        values[:, start:end] = v.transpose(0, 1)

    def _heat_raw(self, layer: int, start: int, k: Tensor, v: Tensor) -> None:
        if self.config.layers[layer].rotated:
            k = self.rotary.rotate(k, start)
        self._heat(layer, start, k, v)

    def _layer(self, layer: int) -> tuple[Tensor, Tensor]:
        if self._hot is None:
            raise RuntimeError("reserve comes before reading or writing")
        return self._hot[0, layer], self._hot[1, layer]

    def heat_blocks(self, first: int, last: int) -> None:
        """Make the hot copy of blocks `first` to `last` (excluded) from their raw rows."""
        if first == last:
            return
        size = self.pool.geometry.block_size
        rows = self.pool.rows[self._where(first, last)]
        for layer in range(self.config.num_layers):
            k, v = rows[:, layer, 0].flatten(0, 1), rows[:, layer, 1].flatten(0, 1)
            self._heat_raw(layer, first * size, k, v)

    def heat_rows(self, start: int, count: int) -> None:
        """Make the hot copy of `count` rows of one block from its raw row. `start` is the block's first position."""
        row = self.pool.rows[self.table[start // self.pool.geometry.block_size]]
        for layer in range(self.config.num_layers):
            self._heat_raw(layer, start, row[layer, 0, :count], row[layer, 1, :count])

    def release(self) -> None:
        """Give every pool row and the hot copy back."""
        self.truncate_table(0)
        if self._hot is not None:
            self._memory.give_back(self._hot)
            self._hot, self._clean_tokens = None, 0
