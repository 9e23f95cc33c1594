"""How K and V stand in the pool: as they are computed, or quantised, with each row's scale beside it.

`int8/row/f32`: the `head_dim` numbers of one token and KV head become integers from -127 to 127, followed by the
float32 that they are multiples of. Numbers are quantised before anything sees them: what attention reads, live as well
as after a load, is what the stored bytes say.

The scale is the largest number of 17 significant bits that is at most a 127th of the row's largest, and at least
2^-126. So every product of integer and scale is a float32 without rounding, nothing is ever out of range, quantising
what was read back gives the same bytes again, and the error is at most half a scale, exactly.

>>> packing = Int8Rows(4)
>>> stored = packing.pack(torch.tensor([[63.5, -31.25, 0.125, 0.25]]))
>>> stored[0, :4].tolist(), stored[0, 4:].view(torch.float32).tolist()
([127, -62, 0, 0], [0.5])
>>> packing.unpack(stored).tolist()
[[63.5, -31.0, 0.0, 0.0]]
"""

from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

from ..cybergraph.errors import UnsafeNumerics
from ..cybergraph.leafsize import SCALE_BYTES
from .geometry import Geometry

DTYPES: Final[dict[str, torch.dtype]] = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}

STEPS: Final = 127
"""Integers on each side of zero. -128 is not used: the range is symmetric."""

LEAST_SCALE: Final = 2.0**-126
"""The least float32 that has all its bits."""

_KEPT_BITS: Final = -1 << (52 - 16)
"""Of a float64: all but the end of its fraction, so that 17 bits are left with the leading one."""


class Packing(Protocol):
    """From rows as attention reads them to rows as they are stored, and back."""

    @property
    def dtype(self) -> torch.dtype:
        """Element type of what is read."""

    @property
    def stored_dtype(self) -> torch.dtype:
        """Element type of what is stored."""

    @property
    def width(self) -> int:
        """Stored elements of one row of `head_dim` numbers."""

    @property
    def exact(self) -> bool:
        """Whether what is read is what was given, and both are the same memory."""

    def pack(self, values: Tensor) -> Tensor:
        """Shapes: [..., head_dim] -> [..., width]. Raises `UnsafeNumerics` for numbers that it cannot hold."""

    def unpack(self, stored: Tensor) -> Tensor:
        """Shapes: [..., width] -> [..., head_dim]."""


@dataclass(frozen=True, slots=True)
class AsComputed:
    """Nothing is changed."""

    width: int
    dtype: torch.dtype

    @property
    def stored_dtype(self) -> torch.dtype:
        """See `Packing`."""
        return self.dtype

    @property
    def exact(self) -> bool:
        """See `Packing`."""
        return True

    def pack(self, values: Tensor) -> Tensor:
        """See `Packing`."""
        return values

    def unpack(self, stored: Tensor) -> Tensor:
        """See `Packing`."""
        return stored


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """`int8/row/f32` of float32."""

    head_dim: int

    @property
    def dtype(self) -> torch.dtype:
        """See `Packing`."""
        return torch.float32

    @property
    def stored_dtype(self) -> torch.dtype:
        """See `Packing`."""
        return torch.int8

    @property
    def width(self) -> int:
        """See `Packing`."""
        return self.head_dim + SCALE_BYTES

    @property
    def exact(self) -> bool:
        """See `Packing`."""
        return False

    def pack(self, values: Tensor) -> Tensor:
        """See `Packing`. Refuses what is not finite."""
        wide = values.double()  # so a quotient is halfway between two integers only where the true one is
        largest = wide.abs().amax(-1, keepdim=True)
        if not torch.isfinite(largest).all():
            raise UnsafeNumerics(
                "a key or value is not finite, so it cannot be quantised",
                hint="what it goes on from may not be sound: `cyberkv prefill` computes the text anew. Where that "
                "fails as well, add the model without --kv-quant",
                scheme="int8/row/f32",
            )  # fmt: skip
        scale = largest.div_(STEPS).view(torch.int64).bitwise_and_(_KEPT_BITS).view(torch.float64)
        scale.clamp_min_(LEAST_SCALE)
        stored = torch.empty((*values.shape[:-1], self.width), dtype=torch.int8)
        stored[..., : self.head_dim] = wide.div_(scale).round_()
        stored[..., self.head_dim :] = scale.float().view(torch.int8)
        return stored

    def unpack(self, stored: Tensor) -> Tensor:
        """See `Packing`."""
        scale = stored[..., self.head_dim :].contiguous().view(torch.float32)
        return stored[..., : self.head_dim].float().mul_(scale)


def packing_of(geometry: Geometry) -> Packing:
    """Give the packing of a model's rows."""
    if geometry.scheme == "none":
        return AsComputed(geometry.head_dim, DTYPES[geometry.dtype])
    return Int8Rows(geometry.head_dim)


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows of one layer as they are stored, and as attention is to read them."""

    k: Tensor
    v: Tensor
    """Shapes: [n, kv_heads, width]."""
    qk: Tensor
    """Shape: [n, heads + kv_heads, head_dim]."""
    seen_v: Tensor
    """Shape: [n, kv_heads, head_dim]."""


def packed(packing: Packing, qk: Tensor, v: Tensor, heads: int) -> Packed:
    """Pack K, the last of `qk` after `heads` ones of Q, and V. Raises as `Packing.pack`."""
    if packing.exact:
        return Packed(packing.pack(qk[:, heads:]), packing.pack(v), qk, v)
    stored = packing.pack(torch.stack((qk[:, heads:], v)))  # together: for a single row, the calls are the cost
    seen_k, seen_v = packing.unpack(stored)
    return Packed(stored[0], stored[1], torch.cat((qk[:, :heads], seen_k), dim=1), seen_v)
