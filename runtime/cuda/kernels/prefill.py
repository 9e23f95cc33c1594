# mypy: ignore-errors
"""Chunks of rows over the pages of what came before and of themselves.

Rows are cut into tiles at multiples of the tile's size counted from position 0, not from the beginning of the chunk: so
where a row lies in its tile, too, depends on its position alone. And there is one program for chunks of any length.
"""

import triton
import triton.language as tl

from .panel import PANEL_KEYS, attend_panel, join
from .rows import load_parts


@triton.jit(
    do_not_specialize=["tables_request", "rows_count"],
    do_not_specialize_on_alignment=["tables", "starts", "lengths", "bases"],
)
def prefill_tiles(
    q,
    kv,
    tables,
    starts,
    lengths,
    bases,
    cos,
    sin,
    result,
    q_request,
    q_row,
    q_head,
    kv_page,
    kv_part,
    kv_slot,
    kv_head,
    tables_request,
    table_row,
    rows_count,
    inner,
    outer,
    window,
    shape: tl.constexpr,
):
    """Grid: (requests, kv_heads, tiles). Writes the result [requests, rows, heads, head_dim] of rows that are real.

    The last tiles see most keys and begin first, so that none of them is left over at the end.
    """
    request = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    start = tl.load(starts + request)
    end = tl.minimum(tl.load(lengths + request), start + rows_count)
    tile_rows: tl.constexpr = shape.lanes // shape.group
    first = (start // tile_rows + tl.num_programs(2) - 1 - tl.program_id(2)) * tile_rows
    if first < end:
        base = tl.load(bases + request)
        lane = tl.arange(0, shape.lanes)
        positions = first + lane // shape.group
        real = (positions >= start) & (positions < end) & (lane < tile_rows * shape.group)
        row = (request * rows_count + (positions - start)).to(tl.int64)
        q_rows = q + request * q_request + (positions - start).to(tl.int64) * q_row
        q_first, q_second, q_rest = load_parts(
            q_rows + (head * shape.group + lane % shape.group) * q_head, real, base + positions, cos, sin, table_row,
            shape, turn=True,
        )  # fmt: skip
        first_key = tl.maximum(tl.maximum(first, start) - window + 1, 0)
        end_key = tl.minimum(first + tile_rows, end)
        out = tl.full([shape.lanes, shape.padded_dim], 0.0, tl.float32)
        lse = tl.full([shape.lanes], float("-inf"), tl.float32)
        for panel in range(first_key // PANEL_KEYS, (end_key + PANEL_KEYS - 1) // PANEL_KEYS):
            panel_out, panel_lse = attend_panel(
                q_first, q_second, q_rest, positions, panel, first_key, end_key,
                kv + head * kv_head, tables + request * tables_request, base, cos, sin,
                kv_page, kv_part, kv_slot, table_row, inner, outer, window, shape,
            )  # fmt: skip
            out, lse = join(out, lse, panel_out, panel_lse)
        column = tl.arange(0, shape.padded_dim)
        inside = real[:, None] & (column < shape.head_dim)[None, :]
        at = (row * tl.num_programs(1) + head) * shape.group + lane % shape.group
        written = out.to(result.dtype.element_ty)
        tl.store(result + at[:, None] * shape.head_dim + column[None, :], written, mask=inside)
