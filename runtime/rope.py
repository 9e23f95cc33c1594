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

    `scaling` holds `rope_type` (`linear`, `llama3` or `yarn`) and its parameters as text, or nothing.
    """
    exponents = torch.arange(0, rotary_dims, 2, dtype=torch.int64).to(torch.float32) / rotary_dims
    periods = base**exponents
    speeds = 1.0 / periods
    if scaling.get("rope_type") == "linear":
        speeds /= float(scaling["factor"])
    elif scaling.get("rope_type") == "llama3":
        speeds = _llama3(speeds, {name: float(text) for name, text in scaling.items() if name != "rope_type"})
    elif scaling.get("rope_type") == "yarn":
        slowed = 1.0 / (float(scaling["factor"]) * periods)
        kept = 1 - _yarn_ramp(rotary_dims, base, scaling)
        speeds = slowed * (1 - kept) + speeds * kept
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


def _yarn_ramp(rotary_dims: int, base: float, scaling: dict[str, str]) -> Tensor:
    """Say which planes are slowed. Shape: [rotary_dims / 2] float32.

    0 for those that turn more than `beta_fast` times within the trained context, 1 for those that turn less than
    `beta_slow` times, and a straight line between.
    """
    context = float(scaling["original_max_position_embeddings"])

    def plane(rotations: float) -> float:
        return (rotary_dims * math.log(context / (rotations * 2 * math.pi))) / (2 * math.log(base))

    low, high = plane(float(scaling["beta_fast"])), plane(float(scaling["beta_slow"]))
    if scaling["truncate"] == "true":
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dims - 1)
    if low == high:
        high += 0.001
    return ((torch.arange(rotary_dims // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)


def attention_factor(scaling: dict[str, str]) -> float:
    """Give the factor on cosines and sines, so its square on the logits of what turns: 1 for all rules but `yarn`."""
    if scaling.get("rope_type") != "yarn":
        return 1.0
    if "attention_factor" in scaling:
        return float(scaling["attention_factor"])
    factor = float(scaling["factor"])
    if "mscale" in scaling:
        return _mscale(factor, float(scaling["mscale"])) / _mscale(factor, float(scaling["mscale_all_dim"]))
    return _mscale(factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def turns(rotary_dims: int, base: float, scaling: dict[str, str], max_positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position and plane, times the attention factor.

    Shapes: [max_positions, rotary_dims / 2] float32 each.
    """
    positions, factor = torch.arange(max_positions, dtype=torch.float32), attention_factor(scaling)
    angles = positions[:, None] * inverse_frequencies(rotary_dims, base, scaling)[None, :]
    return angles.cos() * factor, angles.sin() * factor


class Rotary:
    """Rotation by position of the first `rotary_dims` numbers of a row.

    Number i turns with i + rotary_dims / 2, or, `interleaved`, 2i with 2i + 1.
    """

    def __init__(
        self, rotary_dims: int, base: float, scaling: dict[str, str], max_positions: int, dtype: torch.dtype,
        *, interleaved: bool = False,
    ) -> None:  # fmt: skip
        half, self.max_positions = rotary_dims // 2, max_positions
        self._first, self._second = slice(0, half), slice(half, rotary_dims)
        if interleaved:
            self._first, self._second = slice(0, rotary_dims, 2), slice(1, rotary_dims, 2)
        tables = (table.to(dtype) for table in turns(rotary_dims, base, scaling, max_positions))
        self.cos, self.sin = (self._for_both(table)[:, None, :] for table in tables)
        """Of each number of a row that turns. Shapes: [max_positions, 1, rotary_dims]."""

    def _for_both(self, table: Tensor) -> Tensor:
        wide = table.new_empty(table.shape[0], 2 * table.shape[1])
        wide[:, self._first] = wide[:, self._second] = table
        return wide

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
        return self.turn(rows, self.cos[start:end], self.sin[start:end])

    def turn(self, rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Turn rows by their rows of two tables. Shapes: [n, heads, head_dim], [n, 1, rotary_dims] twice -> as rows."""
        dims, first, second = cos.shape[-1], self._first, self._second
        if dims == rows.shape[-1]:
            turned = rows * cos
        else:
            turned = rows.clone()
            turned[..., :dims].mul_(cos)
        turned[..., first].sub_(rows[..., second] * sin[..., first])
        turned[..., second].add_(rows[..., first] * sin[..., second])
        return turned
