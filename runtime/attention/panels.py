"""Canonical attention on the CPU: fixed panels of 256 keys, merged in ascending order.

A library kernel may split the sum over keys wherever its total length suggests, and each split rounds differently.
Fixing the panels fixes the bytes: a row's result depends on its keys and on nothing else in the call. The rule and the
measurements behind it are in docs/design.md.
"""

from functools import lru_cache

import torch
from torch import Tensor

PANEL_KEYS = 256
FLOOR_ROWS = 16
"""Fewer rows than this go through other inner loops of the matrix library, with other rounding."""

NEVER = -1e30
"""Weight (as a logarithm) of a panel in which a row sees no key: finite, so that merging needs no special case."""


def flash(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Attend within one panel. Returns the output and the log-sum-exp of each row.

    Shapes: q [kv_heads, rows, head_dim], k and v [kv_heads, keys, head_dim] -> same as q, [kv_heads, rows, 1].
    """
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001 - gives the log-sum-exp
        q[None], k[None], v[None], dropout_p=0.0, is_causal=False, attn_mask=mask, scale=scale
    )
    return out[0], lse[0, :, :, None]


@lru_cache(64)
def _panel_mask(
    offset: int, rows: int, group: int, window: int | None, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None]:
    """Mask of one panel for rows that stand `offset` keys after its first key, and which rows see nothing in it.

    Shapes: [1, 1, rows * group, 256] to add, [rows * group] bool. A row that sees nothing is left unmasked here (a
    fully masked row would be NaN) and gets weight `NEVER` by the caller.
    """
    positions = torch.arange(rows)[:, None] + offset
    keys = torch.arange(PANEL_KEYS)[None, :]
    visible = keys <= positions
    if window is not None:
        visible &= keys > positions - window
    blind = ~visible.any(dim=1)
    visible[blind] = True
    if visible.all():
        mask = None
    else:
        mask = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, float("-inf"))
        mask = mask.repeat_interleave(group, dim=0)[None, None]
    return mask, blind.repeat_interleave(group) if blind.any() else None


def panel_attention(q: Tensor, keys: Tensor, values: Tensor, start: int, window: int | None, scale: float) -> Tensor:
    """Attend from rows at positions `start`, `start + 1`, … to all keys at or before each, in canonical order.

    Shapes: q [rows, heads, head_dim] rotated; keys and values [kv_heads, capacity, head_dim], keys rotated, capacity
    a multiple of 256 and everything in it finite -> [rows, heads * head_dim]. `window` keys are seen, the row's own
    included; None is all.
    """
    rows, heads, head_dim = q.shape
    kv_heads = keys.shape[0]
    group = heads // kv_heads
    out = torch.empty(rows, heads, head_dim, dtype=q.dtype)
    first = 0
    while first < rows:
        position = start + first
        last = min(rows, first + PANEL_KEYS - position % PANEL_KEYS)  # rows of one call share their last panel
        count = last - first
        part = q[first:last]
        if count < FLOOR_ROWS:
            part = torch.cat((part, part.new_zeros(FLOOR_ROWS - count, heads, head_dim)))
        padded = part.shape[0]
        folded = part.view(padded, kv_heads, group, head_dim).transpose(0, 1)
        folded = folded.reshape(kv_heads, padded * group, head_dim)
        merged = _merge_panels(folded, keys, values, position, padded, window, scale)
        merged = merged.view(kv_heads, padded, group, head_dim)[:, :count].transpose(0, 1)
        out[first:last] = merged.reshape(count, heads, head_dim)
        first = last
    return out.view(rows, heads * head_dim)


def _merge_panels(
    folded: Tensor, keys: Tensor, values: Tensor, position: int, rows: int, window: int | None, scale: float
) -> Tensor:
    group = folded.shape[1] // rows
    first_key = 0 if window is None else max(0, position - window + 1) // PANEL_KEYS * PANEL_KEYS
    out, total = torch.zeros(0), torch.zeros(0)
    for panel in range(first_key, position + 1, PANEL_KEYS):
        seen = slice(panel, panel + PANEL_KEYS)
        mask, blind = None, None
        if window is not None or panel + PANEL_KEYS > position:
            mask, blind = _panel_mask(position - panel, rows, group, window, folded.dtype)
        part, lse = flash(folded, keys[:, seen], values[:, seen], mask, scale)
        if blind is not None:
            lse[:, blind] = NEVER
        if panel == first_key:
            out, total = part.float(), lse
            continue
        top = torch.maximum(total, lse)
        old, new = torch.exp(total - top), torch.exp(lse - top)
        out = (out * old + part.float() * new) / (old + new)
        total = top + torch.log(old + new)
    return out.to(folded.dtype)


def row_attention(q: Tensor, keys: Tensor, values: Tensor, position: int, window: int | None, scale: float) -> Tensor:
    """Attend from one row, fast: for provisional rows only, whose bytes are never stored as sealed.

    Shapes: q [1, heads, head_dim] rotated; keys and values as in `panel_attention` -> [1, heads * head_dim].
    """
    kv_heads, _, head_dim = keys.shape
    first = 0 if window is None else max(0, position - window + 1)
    folded = q.view(kv_heads, -1, head_dim)
    out, _ = flash(folded, keys[:, first : position + 1], values[:, first : position + 1], None, scale)
    return out.reshape(1, -1)
