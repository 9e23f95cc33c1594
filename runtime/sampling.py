"""Choosing the next token: greedy, or drawn with a seed.

A draw depends on (seed, position, scores) and on nothing before it, so a conversation that is resumed draws what the
uninterrupted one would have drawn.
"""

from dataclasses import dataclass

import torch
from blake3 import blake3
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose. Temperature 0 is greedy."""

    temperature: float = 0.0
    seed: int = 0

    def choose(self, logits: Tensor, position: int) -> int:
        """Choose the token at `position`. Shapes: logits [vocab_size] float32."""
        if self.temperature <= 0:
            return int(logits.argmax())
        bits = blake3(f"cyberkv/draw/1:{self.seed}:{position}".encode()).digest()[:7]
        point = int.from_bytes(bits) / (1 << 56)
        logits = logits.cpu()  # where sums come in the same order each time
        # So that the least temperature divides to no infinity but the right one.
        below_best = logits.double() - logits.max()
        weights = torch.softmax(below_best / self.temperature, dim=-1).cumsum(-1)
        return min(int(torch.searchsorted(weights, point * weights[-1], right=True)), logits.shape[0] - 1)
