"""Rotary embedding, applied at attention dispatch and never to what is stored.

The table of cosines and sines is made once for every position, so that a row is turned by the same bytes whether it
is rotated at prefill, at decode or after a resume.
"""

import math

import torch
from torch import Tensor

from ..cybergraph.errors import OutOfRange


def inverse_frequencies(rotary_dims: int, base: float, scaling: dict[str, str]) -> Tensor:
    """Turn speeds of the `rotary_dims / 2` planes. Shape: [rotary_dims / 2] float32.

    `scaling` holds `rope_type` (`linear` or `llama3`) and its parameters as text, or nothing.
    """
    exponents = torch.arange(0, rotary_dims, 2, dtype=torch.int64).to(torch.float32) / rotary_dims
    speeds = 1.0 / (base**exponents)
    if scaling.get("rope_type") == "linear":
        speeds /= float(scaling["factor"])
    elif scaling.get("rope_type") == "llama3":
        speeds = _llama3(speeds, {name: float(text) for name, text in scaling.items() if name != "rope_type"})
    return speeds


def _llama3(speeds: Tensor, rule: dict[str, float]) -> Tensor:
    """Slow the planes whose wave is longer than the trained context; blend between the two bounds."""
    context, factor = rule["original_max_position_embeddings"], rule["factor"]
    low, high = rule["low_freq_factor"], rule["high_freq_factor"]
    waves = 2 * math.pi / speeds
    slowed = torch.where(waves > context / low, speeds / factor, speeds)
    blend = (context / waves - low) / (high - low)
    blended = (1 - blend) * slowed / factor + blend * slowed
    between = ~(waves < context / high) * ~(waves > context / low)
    return torch.where(between, blended, slowed)


def turns(rotary_dims: int, base: float, scaling: dict[str, str], max_positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position and plane. Shapes: [max_positions, rotary_dims / 2] float32 each."""
    positions = torch.arange(max_positions, dtype=torch.float32)
    angles = positions[:, None] * inverse_frequencies(rotary_dims, base, scaling)[None, :]
    return angles.cos(), angles.sin()


class Rotary:
    """Rotation by position, convention `half` (dimension i turns with i + dims/2)."""

    def __init__(
        self, head_dim: int, base: float, scaling: dict[str, str], max_positions: int, dtype: torch.dtype
    ) -> None:
        cos, sin = (table.repeat(1, 2).to(dtype) for table in turns(head_dim, base, scaling, max_positions))
        self.cos, self.sin = cos[:, None, :], sin[:, None, :]
        self.max_positions = max_positions

    def rotate(self, rows: Tensor, start: int) -> Tensor:
        """Turn rows that stand at positions `start`, `start + 1`, … Shape: [n, heads, head_dim], a new tensor.

        Raises `OutOfRange` beyond the positions of the model.
        """
        end = start + rows.shape[0]
        if end > self.max_positions:
            raise OutOfRange(
                f"position {end - 1} is beyond the model's {self.max_positions} positions",
                hint="fork or start a shorter conversation",
                positions=self.max_positions,
            )
        return turn(rows, self.cos[start:end], self.sin[start:end])


def turn(rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn rows by the angles of each. Shapes: [n, heads, head_dim], [n, 1, head_dim] twice -> a new tensor."""
    half = rows.shape[-1] // 2
    turned = rows * cos
    turned[..., :half].sub_(rows[..., half:] * sin[..., :half])
    turned[..., half:].add_(rows[..., :half] * sin[..., half:])
    return turned
