# mypy: ignore-errors
"""Rows times a weight matrix: each output of a row is one sum over all inputs, in tiles in ascending order.

One program computes `tile_rows` rows by `tile_outputs` outputs. Rows that are not there are zeros, so one row goes
through the products that a thousand go through, in the same order.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n"])
def multiply_rows(
    x,
    weight,
    bias,
    result,
    n,
    inputs: tl.constexpr,
    outputs: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_outputs: tl.constexpr,
    tile_inputs: tl.constexpr,
    grouped: tl.constexpr,
    biased: tl.constexpr,
):
    """Grid: (row tiles * output tiles,). Shapes: x [n, inputs], weight [outputs, inputs] -> result [n, outputs].

    Programs that follow each other share weights: `grouped` row tiles take one output tile before the next.
    """
    row_tiles = (n + tile_rows - 1) // tile_rows
    output_tiles: tl.constexpr = (outputs + tile_outputs - 1) // tile_outputs
    first_tile = tl.program_id(0) // (grouped * output_tiles) * grouped
    beside = tl.minimum(row_tiles - first_tile, grouped)
    inside_group = tl.program_id(0) % (grouped * output_tiles)
    row = (first_tile + inside_group % beside).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)
    output = (inside_group // beside).to(tl.int64) * tile_outputs + tl.arange(0, tile_outputs)
    real_row = (row < n)[:, None]
    real_output = (output < outputs)[:, None]
    total = tl.full([tile_rows, tile_outputs], 0.0, tl.float32)
    for first in range(0, inputs, tile_inputs):
        column = first + tl.arange(0, tile_inputs)
        real_column = (column < inputs)[None, :]
        a = tl.load(x + row[:, None] * inputs + column[None, :], mask=real_row & real_column, other=0.0)
        b = tl.load(weight + output[:, None] * inputs + column[None, :], mask=real_output & real_column, other=0.0)
        total = tl.dot(a, tl.trans(b), total, input_precision="ieee")
    if biased:
        total += tl.load(bias + output, mask=output < outputs, other=0.0).to(tl.float32)[None, :]
    inside = real_row & (output < outputs)[None, :]
    tl.store(result + row[:, None] * outputs + output[None, :], total.to(result.dtype.element_ty), mask=inside)
