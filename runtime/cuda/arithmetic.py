"""The arithmetic of a decoder on a device: weights in its memory, rows by kernels that compute each row alike."""

from typing import Protocol

from torch import Tensor

from ..models.arithmetic import Product
from .cache import AttentionKernels
from .device import Device


class RowKernels(Protocol):
    """What is done with rows between calls of attention."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply rows by a matrix."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Divide rows by their root mean square, and multiply by a weight."""

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Multiply silu of the first half of each row by its second half."""


class Kernels(AttentionKernels, RowKernels, Protocol):
    """All that a step launches: `kernels.launch` and `reference` are two."""


class DeviceArithmetic:
    """See `Arithmetic`."""

    def __init__(self, device: Device, kernels: Kernels) -> None:
        self._device, self._kernels = device, kernels

    def tensor(self, weight: Tensor) -> Tensor:
        """See `Arithmetic`."""
        return self._device.put(weight.contiguous())

    def matrix(self, weight: Tensor) -> Product:
        """See `Arithmetic`."""
        placed, linear = self.tensor(weight), self._kernels.linear

        def product(x: Tensor, bias: Tensor | None = None) -> Tensor:
            return linear(x, placed, bias)

        return product

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `Arithmetic`."""
        return self._kernels.rms_norm(x, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See `Arithmetic`."""
        return self._kernels.silu_mul(gate_up)
