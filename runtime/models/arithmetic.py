"""What a decoder computes with, between calls of its cache: on the host by torch, on a device by kernels."""

from typing import Final, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from .linear import Matrix


class Product(Protocol):
    """Multiplies rows by a weight matrix."""

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Shapes: x [n, inputs], bias [outputs] -> [n, outputs]."""


class Arithmetic(Protocol):
    """Where weights stand, and what is done with rows."""

    def tensor(self, weight: Tensor) -> Tensor:
        """Give a weight where it is computed with. Raises `TierFull`."""

    def matrix(self, weight: Tensor) -> Product:
        """Give the product with a matrix, [outputs, inputs], which may be a copy. Raises `TierFull`."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Divide rows by their root mean square, rounded, and multiply by a weight. Shapes: [..., columns] -> as x."""

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Multiply silu of the first half of each row by its second half. Shapes: [n, 2 * columns] -> [n, columns]."""


class HostArithmetic:
    """See `Arithmetic`."""

    def tensor(self, weight: Tensor) -> Tensor:
        """See `Arithmetic`."""
        return weight

    def matrix(self, weight: Tensor) -> Product:
        """See `Arithmetic`."""
        return Matrix(weight)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `Arithmetic`."""
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        return weight * wide.to(x.dtype)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See `Arithmetic`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up


HOST: Final = HostArithmetic()
