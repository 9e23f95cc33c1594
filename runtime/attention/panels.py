"""Canonical attention on the CPU: fixed panels of 256 keys, merged in ascending order.

A library kernel may split the sum over keys wherever its total length suggests, and each split rounds differently.
Fixing the panels fixes the bytes: a row's result depends on its keys and on nothing else in the call. The rule and the
measurements behind it are in docs/design.md.
"""

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

PANEL_KEYS = 256
FLOOR_ROWS = 16
"""Fewer rows than this go through other inner loops of the matrix library, with other rounding."""

NEVER = -1e30
"""Log-weight of a row that has seen no key yet: finite, so that merging needs no special case."""


def flash(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Attend within one panel. Returns the output and the log-sum-exp of each row.

    Shapes: q [kv_heads, rows, head_dim], k and v [kv_heads, keys, head_dim] -> same as q, [kv_heads, rows, 1].
    """
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001 - gives the log-sum-exp
        q[None], k[None], v[None], dropout_p=0.0, is_causal=False, attn_mask=mask, scale=scale
    )
    return out[0], lse[0, :, :, None]


def panel_attention(q: Tensor, keys: Tensor, values: Tensor, start: int, window: int | None, scale: float) -> Tensor:
    """Attend from rows at positions `start`, `start + 1`, … to all keys at or before each, in canonical order.

    Shapes: q [rows, heads, head_dim] rotated; keys and values [kv_heads, capacity, head_dim], keys rotated, capacity
    a multiple of 256 and everything in it finite -> [rows, heads * head_dim]. `window` keys are seen, the row's own
    included; None is all.
    """
    rows, heads, head_dim = q.shape
    kv_heads = keys.shape[0]
    group = heads // kv_heads
    # The query heads that share a KV head become more rows of it: no key is repeated.
    folded = q.view(rows, kv_heads, group, head_dim).transpose(0, 1).reshape(kv_heads, rows * group, head_dim)
    total = torch.zeros(folded.shape)
    weight = torch.zeros(kv_heads, rows * group, 1)
    top = torch.full_like(weight, NEVER)
    first_panel = 0 if window is None else max(0, start - window + 1) // PANEL_KEYS * PANEL_KEYS
    for panel in range(first_panel, start + rows, PANEL_KEYS):
        k, v = keys[:, panel : panel + PANEL_KEYS], values[:, panel : panel + PANEL_KEYS]
        for first, last, masked in _row_ranges(panel, start, start + rows, window):
            part = slice((first - start) * group, (last - start) * group)
            padded = max(last - first, FLOOR_ROWS)
            asking = folded[:, part]
            if padded > last - first:
                padding = asking.new_zeros(kv_heads, (padded - last + first) * group, head_dim)
                asking = torch.cat((asking, padding), dim=1)
            mask = _mask(first - panel, last - first, padded, group, window, q.dtype) if masked else None
            out, lse = flash(asking, k, v, mask, scale)
            _merge(total[:, part], weight[:, part], top[:, part], out, lse)
    out = (total / weight).to(q.dtype).view(kv_heads, rows, group, head_dim)
    return out.transpose(0, 1).reshape(rows, heads * head_dim)


def _row_ranges(panel: int, start: int, end: int, window: int | None) -> Iterator[tuple[int, int, bool]]:
    """Cut the positions that see a panel by whether they need a mask.

    In order: the panel's own rows, those that see all of it, those whose window has begun to leave it. Gives (first,
    last excluded, masked).
    """
    own = panel + PANEL_KEYS
    ranges = [(panel, own, True), (own, end, False)]
    if window is not None:
        leaving = max(own, panel + window)
        ranges = [(panel, own, True), (own, leaving, False), (leaving, own + window - 1, True)]
    for first, last, masked in ranges:
        first, last = max(first, start), min(last, end)
        if first < last:
            yield first, last, masked


def _merge(total: Tensor, weight: Tensor, top: Tensor, out: Tensor, lse: Tensor) -> None:
    """Add one panel's result to the running sums, in place. Rows of `out` beyond those of `total` are padding.

    A row's sums are relative to the largest log-sum-exp it has met (`top`). Plain products and sums, no fused
    multiply-add, which a library may or may not use at the end of a loop.
    """
    rows = total.shape[1]
    out, lse = out[:, :rows].float(), lse[:, :rows]
    higher = torch.maximum(top, lse)
    old, new = torch.exp(top - higher), torch.exp(lse - higher)
    total.mul_(old).add_(out * new)
    weight.mul_(old).add_(new)
    top.copy_(higher)


@lru_cache(64)
def _mask(offset: int, rows: int, padded: int, group: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """Mask of one panel for rows that stand `offset`, `offset + 1`, … keys after its first key, to be added.

    Shapes: [1, 1, padded * group, 256]. Each real row sees a key; padding rows are left open, for a row that sees
    nothing would be NaN.
    """
    positions = torch.arange(rows)[:, None] + offset
    keys = torch.arange(PANEL_KEYS)[None, :]
    visible = keys <= positions
    if window is not None:
        visible &= keys > positions - window
    mask = torch.zeros(padded, PANEL_KEYS, dtype=dtype)
    mask[:rows].masked_fill_(~visible, float("-inf"))
    return mask.repeat_interleave(group, dim=0)[None, None]


def row_attention(q: Tensor, keys: Tensor, values: Tensor, position: int, window: int | None, scale: float) -> Tensor:
    """Attend from one row, fast: for provisional rows only, whose bytes are never stored as sealed.

    Shapes: q [1, heads, head_dim] rotated; keys and values as in `panel_attention` -> [1, heads * head_dim].
    """
    kv_heads, _, head_dim = keys.shape
    first = 0 if window is None else max(0, position - window + 1)
    folded = q.view(kv_heads, -1, head_dim)
    out, _ = flash(folded, keys[:, first : position + 1], values[:, first : position + 1], None, scale)
    return out.reshape(1, -1)
