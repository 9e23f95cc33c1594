"""Products with weight matrices."""

import torch
import torch.nn.functional as F
from torch import Tensor

MOST_PARTS = 64


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply rows by a weight matrix. Shapes: x [n, inputs], weight [outputs, inputs] -> [n, outputs].

    Several rows go through the library's one product. For one row of float32 the library's matrix-vector routine reads
    memory at less than half its speed on AMD processors (docs/design.md, One row); a batch of products with parts of
    the matrix does not. Both round alike within a kind of row, differently between the two.
    """
    outputs, inputs = weight.shape
    parts = min(outputs & -outputs, MOST_PARTS)
    if x.shape[0] > 1 or x.dtype != torch.float32:
        return F.linear(x, weight, bias)
    # The strides are those of a transposed row: with those of a column the library takes the slow routine again.
    column = x.contiguous().as_strided((parts, inputs, 1), (0, 1, inputs))
    row = torch.bmm(weight.view(parts, outputs // parts, inputs), column).view(1, outputs)
    return row if bias is None else row + bias
