# mypy: ignore-errors
"""One new row of each of many sequences over their pages: every panel by itself, then joined in ascending order.

What differs from step to step, how many panels and where integers lie, is nothing that a kernel is compiled for: so a
model has one program, which is there after the first step.
"""

import triton
import triton.language as tl

from .panel import PANEL_KEYS, attend_panel, join
from .rows import load_parts


@triton.jit(
    do_not_specialize=["tables_request", "panels"], do_not_specialize_on_alignment=["tables", "lengths", "bases"]
)
def decode_panels(
    q,
    kv,
    tables,
    lengths,
    bases,
    cos,
    sin,
    outs,
    lses,
    q_request,
    q_head,
    kv_page,
    kv_part,
    kv_slot,
    kv_head,
    tables_request,
    table_row,
    panels,
    inner,
    outer,
    window,
    shape: tl.constexpr,
):
    """Grid: (requests, kv_heads, panels). Writes a panel's outs [requests, heads, panels, head_dim] and lses."""
    request = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    panel = tl.program_id(2)
    length = tl.load(lengths + request)
    first_key = tl.maximum(length - window, 0)
    if (panel * PANEL_KEYS < length) & ((panel + 1) * PANEL_KEYS > first_key):
        base = tl.load(bases + request)
        lane = tl.arange(0, shape.lanes)
        real = lane < shape.group
        positions = tl.full([shape.lanes], 0, tl.int32) + (length - 1)
        rows = q + request * q_request + (head * shape.group + lane) * q_head
        q_first, q_second, q_rest = load_parts(
            rows, real, base + positions, cos, sin, table_row, shape, turn=True
        )  # fmt: skip
        out, lse = attend_panel(
            q_first, q_second, q_rest, positions, panel, first_key, length,
            kv + head * kv_head, tables + request * tables_request, base, cos, sin,
            kv_page, kv_part, kv_slot, table_row, inner, outer, window, shape,
        )  # fmt: skip
        slot = ((request * tl.num_programs(1) + head) * shape.group + lane) * panels + panel
        column = tl.arange(0, shape.padded_dim)
        inside = real[:, None] & (column < shape.head_dim)[None, :]
        tl.store(outs + slot[:, None] * shape.head_dim + column[None, :], out, mask=inside)
        tl.store(lses + slot, lse, mask=real)


@triton.jit(do_not_specialize=["panels"], do_not_specialize_on_alignment=["lengths"])
def merge_panels(
    outs, lses, lengths, result, panels, window, head_dim: tl.constexpr, padded_dim: tl.constexpr
):  # fmt: skip
    """Grid: (requests, heads). Joins what `decode_panels` wrote into the result [requests, heads, head_dim]."""
    request = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + request)
    row = request * tl.num_programs(1) + tl.program_id(1)
    column = tl.arange(0, padded_dim)
    inside = (column < head_dim)[None, :]
    out = tl.full([1, padded_dim], 0.0, tl.float32)
    lse = tl.full([1], float("-inf"), tl.float32)
    for panel in range(tl.maximum(length - window, 0) // PANEL_KEYS, (length + PANEL_KEYS - 1) // PANEL_KEYS):
        slot = row * panels + panel
        panel_out = tl.load(outs + slot * head_dim + column[None, :], mask=inside, other=0.0)
        panel_lse = tl.load(lses + slot + tl.arange(0, 1))
        out, lse = join(out, lse, panel_out, panel_lse)
    tl.store(result + row * head_dim + column[None, :], out.to(result.dtype.element_ty), mask=inside)
