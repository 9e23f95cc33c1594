"""Memory for rotated copies: contiguous per layer and head, reused from one sequence to the next.

Memory that a process touches for the first time is slow (the kernel clears every page), so a buffer that a sequence
gives back serves the next one. Layers that see everything have a copy of full length, the others a ring each.

Blocks that conversations share are once in the pool, and once in each one's rotated copy: so this memory has a bound of
its own.
"""

import sys
from typing import Final
from weakref import ref

import torch
from torch import Tensor

from ..cybergraph.errors import TierFull
from .attention.panels import FLOOR_ROWS, PANEL_KEYS
from .models.config import DecoderConfig
from .rings.plane import Plane
from .rings.ring import Ring
from .rings.window import ring_capacity

KEPT_BUFFERS = 2
POOLS: Final = 2
"""Rotated rows for so many pools, and for `SPARE_PANELS`: one conversation that fills the pool, with what it had before
it grew, or many that share."""
SPARE_PANELS: Final = 16


def limit_bytes(config: DecoderConfig, dtype: torch.dtype, pool_tokens: int) -> int:
    """Give the bound on rotated copies beside a pool of so many tokens."""
    return (POOLS * pool_tokens + SPARE_PANELS * PANEL_KEYS) * config.num_layers * _row_bytes(config, dtype)


def _row_bytes(config: DecoderConfig, dtype: torch.dtype) -> int:
    return 2 * config.num_kv_heads * config.head_dim * dtype.itemsize


class HotMemory:
    """Buffers and planes of one model, within `limit_bytes`."""

    def __init__(self, config: DecoderConfig, dtype: torch.dtype, limit_bytes: int = sys.maxsize) -> None:
        self._config = config
        self._dtype = dtype
        self.limit_bytes = limit_bytes
        self._made: list[tuple[ref[Tensor], int]] = []
        """All that exist, and their bytes: told from what lives, so a step that is stopped anywhere loses no count."""
        self._free: list[Tensor] = []
        self._free_planes: list[dict[int, Plane]] = []
        self.full_layers = [layer for layer, kind in enumerate(config.layers) if kind.window is None]
        self._rings = {
            layer: ring_capacity(kind.window, config.max_positions)
            for layer, kind in enumerate(config.layers)
            if kind.window is not None
        }
        self.most_tokens = -(-(config.max_positions + FLOOR_ROWS) // PANEL_KEYS) * PANEL_KEYS
        """Capacity beyond which no buffer has to grow."""

    @property
    def bytes(self) -> int:
        """Memory set aside, with what is kept for the next sequences."""
        self._made = [each for each in self._made if each[0]() is not None]
        return sum(size_bytes for _, size_bytes in self._made)

    @property
    def left_bytes(self) -> int:
        """What sequences may still take."""
        kept_bytes = sum(buffer.nbytes for buffer in self._free)
        kept_bytes += sum(plane.bytes for planes in self._free_planes for plane in planes.values())
        return self.limit_bytes - self.bytes + kept_bytes

    def copy_bytes(self, length_tokens: int) -> int:
        """Say what a sequence of this length takes."""
        rows = -(-length_tokens // PANEL_KEYS) * PANEL_KEYS * len(self.full_layers) + sum(self._rings.values())
        return rows * _row_bytes(self._config, self._dtype)

    def take(self, capacity_tokens: int) -> Tensor:
        """Give a buffer of at least this capacity. Its content is arbitrary: clear what will be read.

        Shape: `[K|V, full layers, kv_heads, capacity_tokens, head_dim]`. Raises `TierFull` beyond the limit.
        """
        fitting = [buffer for buffer in self._free if buffer.shape[3] >= capacity_tokens]
        if fitting:
            smallest = min(fitting, key=lambda buffer: buffer.shape[3])
            self._free = [buffer for buffer in self._free if buffer is not smallest]
            return smallest
        c = self._config
        self._make_room(len(self.full_layers) * capacity_tokens * _row_bytes(c, self._dtype))
        made = torch.empty(2, len(self.full_layers), c.num_kv_heads, capacity_tokens, c.head_dim, dtype=self._dtype)
        self._made.append((ref(made), made.nbytes))
        return made

    def _make_room(self, size_bytes: int) -> None:
        """Let what nobody uses go where it takes the room. Raises `TierFull`."""
        if self.bytes + size_bytes > self.limit_bytes:
            self._free, self._free_planes = [], []
            if self.bytes + size_bytes > self.limit_bytes:
                raise TierFull(
                    f"rotated copies of conversations would take more than {self.limit_bytes:,} bytes",
                    hint="close a conversation or give the pool more blocks",
                    limit_bytes=self.limit_bytes,
                )

    def give_back(self, buffer: Tensor) -> None:
        """Keep a buffer for the next sequence; of more than two, the smallest is let go."""
        self._free = sorted([*self._free, buffer], key=lambda each: -each.shape[3])[:KEPT_BUFFERS]

    def take_planes(self) -> dict[int, Plane]:
        """Give an empty plane for each layer with a window: zeros, or rows that no ring describes any more.

        Raises `TierFull` beyond the limit.
        """
        if self._free_planes:
            return {layer: plane.on(Ring(plane.capacity)) for layer, plane in self._free_planes.pop().items()}
        c = self._config
        self._make_room(sum(self._rings.values()) * _row_bytes(c, self._dtype))
        planes = {
            layer: Plane.zeroed(capacity, c.num_kv_heads, c.head_dim, self._dtype)
            for layer, capacity in self._rings.items()
        }
        self._made += [(ref(plane.key), plane.bytes) for plane in planes.values()]
        return planes

    def give_back_planes(self, planes: dict[int, Plane]) -> None:
        """Keep planes for the next sequence, up to two sets."""
        self._free_planes = [planes, *self._free_planes][:KEPT_BUFFERS]


class FullCopy:
    """Rotated K, and V, of the layers that see everything, at every position from 0: a `KeyValueSource`."""

    def __init__(self, memory: HotMemory) -> None:
        self._memory = memory
        self._index = {layer: index for index, layer in enumerate(memory.full_layers)}
        self._hot: Tensor | None = None
        self._clean_tokens = 0
        """Positions that were cleared: attention reads whole panels, and a NaN left behind by another sequence would
        come through any mask."""
        self._written_tokens = 0
        """Positions that something was written to since."""

    @property
    def bytes(self) -> int:
        """Memory held."""
        return 0 if self._hot is None else self._hot.nbytes

    def reserve(self, length_tokens: int) -> None:
        """Make room for `length_tokens` positions, padding rows included. Raises `TierFull`, having done nothing."""
        needed = -(-length_tokens // PANEL_KEYS) * PANEL_KEYS
        if needed <= self._clean_tokens or not self._index:
            return
        if self._hot is None:
            self._hot = self._memory.take(needed)
        elif needed > self._hot.shape[3]:
            grown = self._memory.take(self._grown_tokens(needed, self._hot.shape[3]))
            grown[:, :, :, : self._clean_tokens] = self._hot[:, :, :, : self._clean_tokens]
            self._memory.give_back(self._hot)
            self._hot = grown
        self._hot[:, :, :, self._clean_tokens : needed].zero_()
        self._clean_tokens = needed

    def _grown_tokens(self, needed: int, capacity: int) -> int:
        """Say how large to grow: twice, where there is room for that, and no more than is ever needed."""
        double = min(2 * capacity, self._memory.most_tokens)
        return max(needed, double if self._memory.copy_bytes(double) <= self._memory.left_bytes else 0)

    def extended(
        self,
        layer: int,
        start: int,
        k: Tensor,
        v: Tensor,
        rows: int,  # noqa: ARG002
        span: tuple[int, int],
    ) -> tuple[Tensor, Tensor]:
        """Write rows, padding included, and give the layer's whole copy."""
        self.keep(layer, start, k, v)
        return self.keys_values(layer, *span)

    def keys_values(self, layer: int, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Give the layer's copy from `first` on."""
        if self._hot is None or last > self._hot.shape[3]:
            raise RuntimeError("reserve comes before reading or writing")
        index = self._index[layer]
        if first:
            return self._hot[0, index, :, first:], self._hot[1, index, :, first:]
        return self._hot[0, index], self._hot[1, index]

    def keep(self, layer: int, start: int, k: Tensor, v: Tensor) -> None:
        """Write rows. Shapes: k and v [kv_heads, rows, head_dim]."""
        end = start + k.shape[1]
        keys, values = self.keys_values(layer, 0, end)
        self._written_tokens = max(self._written_tokens, end)
        keys[:, start:end] = k
        values[:, start:end] = v

    def clear_after(self, length_tokens: int) -> None:
        """Clear what was written behind the first positions: a model that overflows leaves NaN there."""
        if self._hot is not None and length_tokens < self._written_tokens:
            self._hot[:, :, :, length_tokens : self._written_tokens].zero_()
            self._written_tokens = length_tokens

    def release(self) -> None:
        """Give the buffer back."""
        if self._hot is not None:
            self._memory.give_back(self._hot)
            self._hot, self._clean_tokens, self._written_tokens = None, 0, 0
