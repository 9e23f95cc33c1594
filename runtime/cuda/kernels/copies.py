# mypy: ignore-errors
"""Rows into pages, and whole pool rows between the pool and contiguous staging. Bits are moved, not numbers."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tables_request"], do_not_specialize_on_alignment=["tables", "requests", "positions"])
def append_slots(
    kv,
    k,
    v,
    tables,
    requests,
    positions,
    kv_page,
    kv_part,
    kv_slot,
    kv_head,
    k_row,
    k_head,
    v_row,
    v_head,
    tables_request,
    page_size: tl.constexpr,
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
):
    """Grid: (rows, kv_heads). Writes K and V of row i to the slot of `positions[i]`; a negative one is padding."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    position = tl.load(positions + row)
    if position >= 0:
        request = tl.load(requests + row).to(tl.int64)
        page = tl.load(tables + request * tables_request + position // page_size).to(tl.int64)
        to = kv + page * kv_page + (position % page_size) * kv_slot + head * kv_head
        column = tl.arange(0, padded_dim)
        inside = column < head_dim
        tl.store(to + column, tl.load(k + row * k_row + head * k_head + column, mask=inside), mask=inside)
        tl.store(to + kv_part + column, tl.load(v + row * v_row + head * v_head + column, mask=inside), mask=inside)


@triton.jit(do_not_specialize_on_alignment=["indices"])
def copy_words(
    source, target, indices, source_row, target_row, words, gather: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """Grid: (rows, ceil(words / block)). Copies row `indices[i]` to row i, or, not gathering, row i to `indices[i]`."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.load(indices + row).to(tl.int64)
    if gather:
        source_at = index
        target_at = row
    else:
        source_at = row
        target_at = index
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < words
    tl.store(
        target + target_at * target_row + column,
        tl.load(source + source_at * source_row + column, mask=inside),
        mask=inside,
    )
