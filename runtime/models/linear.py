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


def linear_each(rows: Tensor, weight: Tensor) -> Tensor:
    """Multiply rows by a matrix one row at a time, as `linear` does alone, but part of the matrix by part.

    A part stays in the processor's cache from row to row. Shapes as in `linear`.
    """
    outputs, inputs = weight.shape
    parts = min(outputs & -outputs, MOST_PARTS)
    count = rows.shape[0]
    if count == 1 or parts == 1 or rows.dtype != torch.float32:
        return torch.cat([linear(row[None], weight) for row in rows])
    columns = rows.contiguous().as_strided((count, inputs, 1), (inputs, 1, inputs))
    result = rows.new_empty(parts, count, outputs // parts, 1)
    for index, part in enumerate(weight.view(parts, outputs // parts, inputs)):
        torch.bmm(part.expand(count, -1, -1), columns, out=result[index])
    return result.transpose(0, 1).reshape(count, outputs)
