"""Products with weight matrices."""

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

_PACKS: Final = hasattr(torch.ops.mkldnn, "_reorder_linear_weight")

_PACKED_FOR_ROWS: Final = 16
"""The number of rows that a layout is made for. Made for one row it would round one row by itself in its own way."""


class Matrix:
    """A weight matrix, in the layout in which it is read: packed for the CPU's library in float32, else as it came.

    A packed one gives a row the same bytes whatever rows come with it (docs/design.md, Canonical bytes). It is a copy:
    let the original go.
    """

    def __init__(self, weight: Tensor) -> None:
        """Take a matrix. Shape: [outputs, inputs]."""
        self._packed = _PACKS and weight.dtype == torch.float32 and weight.device.type == "cpu"
        self._weight: Tensor = weight
        if self._packed:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)  # noqa: SLF001

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply rows by the matrix. Shapes: x [n, inputs], bias [outputs] -> [n, outputs]."""
        if self._packed:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, bias, "none", [], "")  # noqa: SLF001
            return product
        return F.linear(x, self._weight, bias)
