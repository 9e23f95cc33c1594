"""Choosing the next token: greedy, or drawn with a seed.

A draw depends on (seed, position, scores) and on nothing before it, so a conversation that is resumed draws what the
uninterrupted one would have drawn.
"""

import math
from dataclasses import dataclass

import torch
from blake3 import blake3
from torch import Tensor

from ..cybergraph.errors import UnsafeNumerics


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose. Temperature 0 is greedy."""

    temperature: float = 0.0
    seed: int = 0

    def choose(self, logits: Tensor, position: int) -> int:
        """Choose the token at `position`. Shapes: logits [vocab_size] float32.

        Raises `UnsafeNumerics` where the best score is no finite number: then none means anything.
        """
        best = int(logits.argmax())  # of what is no number, if there is any
        if not math.isfinite(score := float(logits[best])):
            raise UnsafeNumerics(
                f"the scores at token {position} are not finite, so none can be chosen by them",
                hint="the model may overflow in its number format; add it with another --dtype, such as f32",
                position=position, field="score", expected="finite", got=str(score),
            )  # fmt: skip
        if self.temperature <= 0:
            return best
        bits = blake3(f"cyberkv/draw/1:{self.seed}:{position}".encode()).digest()[:7]
        point = int.from_bytes(bits) / (1 << 56)
        logits = logits.cpu()  # where sums come in the same order each time
        # So that the least temperature divides to no infinity but the right one.
        below_best = logits.double() - logits.max()
        weights = torch.softmax(below_best / self.temperature, dim=-1).cumsum(-1)
        return min(int(torch.searchsorted(weights, point * weights[-1], right=True)), logits.shape[0] - 1)
