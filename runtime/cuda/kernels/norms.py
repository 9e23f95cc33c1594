# mypy: ignore-errors
"""What stands between matrix products: norms of rows, and the gate of the feed-forward part.

How many numbers a thread of a norm loads at once follows from how rows are aligned, and the order of the sum from
that. So nothing is specialised for what the host happens to pass; the launch says what holds for a shape, always.
"""

import triton
import triton.language as tl
from triton.language.standard import _sum_combine as added


@triton.jit(
    do_not_specialize=["x_row", "x_head", "weight_head"], do_not_specialize_on_alignment=["x", "weight", "result"]
)
def normalise_rows(
    x,
    weight,
    result,
    x_row,
    x_head,
    weight_head,
    eps,
    columns: tl.constexpr,
    padded: tl.constexpr,
    aligned: tl.constexpr,
):
    """Grid: (rows, heads). x / sqrt(mean(x^2) + eps) in float32, rounded, times the weight, rounded."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    column = tl.arange(0, padded)
    inside = column < columns
    source = x + row * x_row + head * x_head
    factors = weight + head * weight_head
    target = result + (row * tl.num_programs(1) + head) * columns
    if aligned:
        source = tl.multiple_of(source, 16)
        factors = tl.multiple_of(factors, 16)
        target = tl.multiple_of(target, 16)
    wide = tl.load(source + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.reduce(wide * wide, 0, added), columns * 1.0)
    wide = wide * tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
    element = result.dtype.element_ty
    factor = tl.load(factors + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(target + column, (factor * wide.to(element).to(tl.float32)).to(element), mask=inside)


@triton.jit
def multiply_silu(gate_up, result, columns: tl.constexpr, block: tl.constexpr):
    """Grid: (rows, ceil(columns / block)). silu(gate) in float32, rounded, times up, rounded."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < columns
    gate = tl.load(gate_up + row * 2 * columns + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * columns + columns + column, mask=inside, other=0.0).to(tl.float32)
    element = result.dtype.element_ty
    opened = tl.div_rn(gate, 1.0 + tl.exp(-gate)).to(element).to(tl.float32)
    tl.store(result + row * columns + column, (opened * up).to(element), mask=inside)
