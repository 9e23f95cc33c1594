"""What stands between attention calls, as functions of rows: no bit of a row depends on how many others there are.

A kernel is compiled for the sizes of a model, never for the number of rows, and what it is told of alignment follows
from those sizes, too: rows that lie otherwise are copied first. `runtime.cuda.reference` has the same functions.
"""

import torch
from torch import Tensor

from ...quant import DTYPES
from .checks import capability_of, require_linear, require_norm, require_silu
from .linear import multiply_rows
from .norms import multiply_silu, normalise_rows
from .tiles import SILU_NUMBERS, UNFUSED, linear_cut, norm_warps, power_of_two

ALIGNED_BYTES = 16
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply rows by a weight matrix: summed in float32 in ascending tiles of inputs, rounded once, after the bias.

    Shapes: x [n, inputs], weight [outputs, inputs] in one piece, bias [outputs], all of one type -> [n, outputs].
    Raises `UnsupportedModel`.
    """
    require_linear(x, weight, bias)
    n, (outputs, inputs) = x.shape[0], weight.shape
    result = x.new_empty(n, outputs)
    if n == 0:
        return result
    cut, capability = linear_cut(NAMES[x.dtype], outputs), capability_of(x.device)
    tiles = -(-n // cut.tile_rows) * -(-outputs // cut.tile_outputs)
    multiply_rows[(tiles,)](
        _in_one_piece(x), weight, weight if bias is None else bias, result, n,
        inputs=inputs, outputs=outputs, biased=bias is not None, **cut.constants, **cut.options(capability),
    )  # fmt: skip
    return result


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide rows by their root mean square, in float32 and rounded, and multiply by a weight, rounded.

    Shapes: x [n, columns] with weight [columns], or x [n, heads, columns] with weight [heads, columns] or [columns], of
    one type -> as x, in one piece. Raises `UnsupportedModel`.
    """
    require_norm(x, weight)
    columns = x.shape[-1]
    heads = x.shape[1] if x.ndim == 3 else 1
    result = x.new_empty(x.shape)
    if result.numel() == 0:
        return result
    aligned = columns * x.element_size() % ALIGNED_BYTES == 0
    if aligned:
        x, weight = _aligned(x), _aligned(weight)
    normalise_rows[(x.shape[0], heads)](
        x, weight, result, x.stride(0), x.stride(1) if x.ndim == 3 else 0, columns if weight.ndim == 2 else 0, eps,
        columns=columns, padded=power_of_two(columns), aligned=aligned, num_warps=norm_warps(columns), **UNFUSED,
    )  # fmt: skip
    return result


def silu_mul(gate_up: Tensor) -> Tensor:
    """Multiply silu of the first half of each row, in float32 and rounded, by its second half, rounded.

    Shapes: [n, 2 * columns] -> [n, columns]. Raises `UnsupportedModel`.
    """
    require_silu(gate_up)
    n, columns = gate_up.shape[0], gate_up.shape[1] // 2
    result = gate_up.new_empty(n, columns)
    if n == 0:
        return result
    multiply_silu[(n, -(-columns // SILU_NUMBERS))](
        _in_one_piece(gate_up), result, columns=columns, block=SILU_NUMBERS, num_warps=4, **UNFUSED
    )
    return result


def _in_one_piece(rows: Tensor) -> Tensor:
    rows = rows.contiguous()
    return rows.clone() if rows.data_ptr() % ALIGNED_BYTES else rows


def _aligned(rows: Tensor) -> Tensor:
    """Give rows, or a copy, of which each begins at a multiple of 16 bytes."""
    # The step of a dimension of one is never taken, whatever the tensor says of it.
    steps = [step for step, size in zip(rows.stride()[:-1], rows.shape[:-1], strict=True) if size > 1]
    crooked = any(step * rows.element_size() % ALIGNED_BYTES for step in steps)
    return rows.clone(memory_format=torch.contiguous_format) if crooked or rows.data_ptr() % ALIGNED_BYTES else rows
