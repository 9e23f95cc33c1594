"""Memory for rotated copies: contiguous per layer and head, reused from one sequence to the next.

Memory that a process touches for the first time is slow (the kernel clears every page), so a buffer that a sequence
gives back serves the next one.
"""

import torch
from torch import Tensor

from .models.config import DecoderConfig

KEPT_BUFFERS = 2


class HotMemory:
    """Buffers of one model. Shape: `[K|V, num_layers, kv_heads, capacity_tokens, head_dim]`."""

    def __init__(self, config: DecoderConfig, dtype: torch.dtype) -> None:
        self._config = config
        self._dtype = dtype
        self._free: list[Tensor] = []

    def take(self, capacity_tokens: int) -> Tensor:
        """Give a buffer of at least this capacity. Its content is arbitrary: clear what will be read."""
        fitting = [buffer for buffer in self._free if buffer.shape[3] >= capacity_tokens]
        if fitting:
            smallest = min(fitting, key=lambda buffer: buffer.shape[3])
            self._free = [buffer for buffer in self._free if buffer is not smallest]
            return smallest
        c = self._config
        return torch.empty(2, c.num_layers, c.num_kv_heads, capacity_tokens, c.head_dim, dtype=self._dtype)

    def give_back(self, buffer: Tensor) -> None:
        """Keep a buffer for the next sequence; of more than two, the smallest is let go."""
        self._free = sorted([*self._free, buffer], key=lambda each: -each.shape[3])[:KEPT_BUFFERS]
