"""A sequence in host memory: beside the raw rows, rotated ones that attention reads.

They can always be made again from the raw ones: at full length for layers that see everything, in a ring for layers
with a window.
"""

import torch
from torch import Tensor

from ..cybergraph.errors import CacheDiscontinuity
from .attention.panels import key_span, panel_attention
from .attention.source import KeyValueSource
from .hot import FullCopy, HotMemory
from .models.config import DecoderConfig
from .models.decoder import Decoder
from .pool import Pool
from .quant import packed
from .ringcopy import RingCopy
from .rings.window import first_live, first_read
from .rope import Rotary
from .rows import ARCHIVED
from .sequence import Sequence


class RotatedSequence(Sequence):
    """See `Sequence`."""

    pool: Pool

    def __init__(self, config: DecoderConfig, rotary: Rotary, pool: Pool, memory: HotMemory) -> None:
        super().__init__(config, pool)
        self.rotary = rotary
        self._full = FullCopy(memory)
        self._rings = RingCopy(memory)

    @property
    def live_bytes(self) -> int:
        """Memory of the rotated rows, as far as it is set aside."""
        return self._full.bytes + self._rings.bytes

    def reserve(self, length_tokens: int) -> None:
        """Make room for `length_tokens` positions, padding rows included. Raises `TierFull`."""
        self._full.reserve(length_tokens)

    def truncate_table(self, blocks: int) -> None:
        """See `Sequence`."""
        super().truncate_table(blocks)
        self.clear_after(blocks * self.pool.geometry.block_size)

    def clear_after(self, length_tokens: int) -> None:
        """See `Sequence`."""
        self._full.clear_after(length_tokens)

    def forward(self, decoder: Decoder, tokens: Tensor, start: int, rows: int) -> Tensor:
        """See `Sequence`."""
        return decoder.forward(tokens, start, rows, self)[:rows]

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
        """Write raw K and V of `rows` positions from `start`, then attend in canonical order.

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
        return panel_attention(qk[:, :heads], keys, values, start - span[0], kind.window, self.config.scale)

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

    def _heat_layer(self, layer: int, start: int, end: int) -> None:
        self._require_end(layer, start)
        window, first = self.config.layers[layer].window, start
        if window is not None:
            live = first_live(window, end)
            if live > start or not self._rings.cut_to(layer, live, start):
                self._rings.restart(layer, live)
                self._ends[layer] = first = live
        self._heat(layer, first, end)

    def release(self) -> None:
        """Give every pool row and the rotated rows back."""
        super().release()
        self._full.release()
        self._rings.release()


def rotated(sequence: Sequence) -> RotatedSequence:
    """Give a sequence of the host as what it is. Raises `TypeError` for one of a device."""
    if not isinstance(sequence, RotatedSequence):
        raise TypeError("a sequence of a device, in a step of the host")
    return sequence
