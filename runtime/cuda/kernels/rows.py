# mypy: ignore-errors
"""Rows as a kernel reads them: turned by position on the way in, in parts that turn together.

A row of `head_dim` numbers comes as two parts of `rotary_half` numbers, one of which turns with the other, and the rest
that does not turn. A product of two rows is the sum of the products of their parts, whatever the order inside. So both
conventions, and rotation of a part of the row, are one code.
"""

import triton
import triton.language as tl


@triton.jit
def load_parts(
    rows,
    real,
    positions,
    cos,
    sin,
    table_row,
    shape: tl.constexpr,
    turn: tl.constexpr,
):
    """Load rows at pointers `rows` [n] where `real` [n]; the others are zeros and not read.

    Gives two parts [n, padded_half] and the rest [n, padded_rest]; with `turn`, turned in float32 and rounded once. A
    part that the model lacks is the other one again, and not to be used.
    """
    if shape.rotary_half > 0:
        plane = tl.arange(0, shape.padded_half)
        inside = real[:, None] & (plane < shape.rotary_half)[None, :]
        if shape.interleaved:
            first_at = 2 * plane
            second_at = 2 * plane + 1
        else:
            first_at = plane
            second_at = plane + shape.rotary_half
        first = tl.load(rows[:, None] + first_at[None, :], mask=inside, other=0.0)
        second = tl.load(rows[:, None] + second_at[None, :], mask=inside, other=0.0)
        if turn:
            at = positions.to(tl.int64)[:, None] * table_row + plane[None, :]
            c = tl.load(cos + at, mask=inside, other=0.0)
            s = tl.load(sin + at, mask=inside, other=0.0)
            x = first.to(tl.float32)
            y = second.to(tl.float32)
            turned_first = x * c - y * s
            turned_second = y * c + x * s
            first = turned_first.to(first.dtype)
            second = turned_second.to(second.dtype)
    if shape.rest > 0:
        column = tl.arange(0, shape.padded_rest)
        inside_rest = real[:, None] & (column < shape.rest)[None, :]
        others = tl.load(rows[:, None] + (2 * shape.rotary_half + column)[None, :], mask=inside_rest, other=0.0)
    if shape.rest == 0:
        others = first
    if shape.rotary_half == 0:
        first = others
        second = others
    return first, second, others
