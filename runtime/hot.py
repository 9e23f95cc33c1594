"""Memory for rotated copies: contiguous per layer and head, reused from one sequence to the next.

Memory that a process touches for the first time is slow (the kernel clears every page), so a buffer that a sequence
gives back serves the next one. Layers that see everything have a copy of full length, the others a ring each.
"""

import torch
from torch import Tensor

from .attention.panels import PANEL_KEYS
from .models.config import DecoderConfig
from .rings.plane import Plane
from .rings.ring import Ring
from .rings.window import ring_capacity

KEPT_BUFFERS = 2


class HotMemory:
    """Buffers and planes of one model."""

    def __init__(self, config: DecoderConfig, dtype: torch.dtype) -> None:
        self._config = config
        self._dtype = dtype
        self._free: list[Tensor] = []
        self._free_planes: list[dict[int, Plane]] = []
        self.full_layers = [layer for layer, kind in enumerate(config.layers) if kind.window is None]

    def take(self, capacity_tokens: int) -> Tensor:
        """Give a buffer of at least this capacity. Its content is arbitrary: clear what will be read.

        Shape: `[K|V, full layers, kv_heads, capacity_tokens, head_dim]`.
        """
        fitting = [buffer for buffer in self._free if buffer.shape[3] >= capacity_tokens]
        if fitting:
            smallest = min(fitting, key=lambda buffer: buffer.shape[3])
            self._free = [buffer for buffer in self._free if buffer is not smallest]
            return smallest
        c = self._config
        return torch.empty(2, len(self.full_layers), c.num_kv_heads, capacity_tokens, c.head_dim, dtype=self._dtype)

    def give_back(self, buffer: Tensor) -> None:
        """Keep a buffer for the next sequence; of more than two, the smallest is let go."""
        self._free = sorted([*self._free, buffer], key=lambda each: -each.shape[3])[:KEPT_BUFFERS]

    def take_planes(self) -> dict[int, Plane]:
        """Give an empty plane for each layer with a window: zeros, or rows that no ring describes any more."""
        if self._free_planes:
            return {layer: plane.on(Ring(plane.capacity)) for layer, plane in self._free_planes.pop().items()}
        c = self._config
        return {
            layer: Plane.zeroed(ring_capacity(kind.window, c.max_positions), c.num_kv_heads, c.head_dim, self._dtype)
            for layer, kind in enumerate(c.layers)
            if kind.window is not None
        }

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

    @property
    def bytes(self) -> int:
        """Memory held."""
        return 0 if self._hot is None else self._hot.nbytes

    def reserve(self, length_tokens: int) -> None:
        """Make room for `length_tokens` positions, padding rows included."""
        needed = -(-length_tokens // PANEL_KEYS) * PANEL_KEYS
        if needed <= self._clean_tokens or not self._index:
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
        keys[:, start:end] = k
        values[:, start:end] = v

    def release(self) -> None:
        """Give the buffer back."""
        if self._hot is not None:
            self._memory.give_back(self._hot)
            self._hot, self._clean_tokens = None, 0
