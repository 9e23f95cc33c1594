"""Canonical attention on the CPU: which keys one library call sums over depends on a row's position alone.

A library kernel splits the sum over keys by the number of keys in the call, and each split rounds differently. So no
call crosses a panel of 256 positions: the panels before a row's own are one call, its own panel is another. The rule
and the measurements behind it are in docs/design.md.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

PANEL_KEYS = 256
FLOOR_ROWS = 16
"""Where a row alone does not have the canonical bytes, a step has so many: fewer go through other inner loops of the
matrix library, with other rounding."""
ASKING_ROWS = 4
"""Rows of one KV head in a library call of attention, or a multiple: what is left of such groups rounds differently."""


def step_rows(count: int, floor_rows: int) -> int:
    """Give the rows of a step of `count` tokens, padding included.

    Beyond 16 it is a multiple in any case: the library prepares itself for each number of rows that it has not met.

    >>> [step_rows(count, 1) for count in (1, 7, 16, 17)], [step_rows(count, 16) for count in (1, 7, 16, 17)]
    ([1, 7, 16, 32], [16, 16, 16, 32])
    """
    return count if floor_rows <= count < FLOOR_ROWS else -(-count // FLOOR_ROWS) * FLOOR_ROWS


def flash(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Attend within one panel. Returns the output and the log-sum-exp of each row.

    Shapes: q [kv_heads, rows, head_dim], k and v [kv_heads, keys, head_dim] -> same as q, [kv_heads, rows, 1].
    """
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001 - gives the log-sum-exp
        q[None], k[None], v[None], dropout_p=0.0, is_causal=False, attn_mask=mask, scale=scale
    )
    return out[0], lse[0, :, :, None]


def key_span(start: int, rows: int, window: int | None) -> tuple[int, int]:
    """Give the first and last (excluded) position that attention from `rows` rows at `start` reads.

    Whole panels: beginning the keys at a multiple of 256 changes no byte, so `panel_attention` may be given positions
    counted from the first of them.

    >>> key_span(600, 16, None), key_span(600, 16, 8), key_span(620, 1, 8)
    ((0, 768), (256, 768), (256, 768))
    """
    return seen_from(start // PANEL_KEYS * PANEL_KEYS, window), -(-(start + rows) // PANEL_KEYS) * PANEL_KEYS


def seen_from(panel: int, window: int | None) -> int:
    """Give the start of the panel in which the window of a panel's first row begins."""
    return 0 if window is None else max(0, panel - window + 1) // PANEL_KEYS * PANEL_KEYS


def panel_attention(q: Tensor, keys: Tensor, values: Tensor, start: int, window: int | None, scale: float) -> Tensor:
    """Attend from rows at positions `start`, `start + 1`, … to all keys at or before each, in canonical order.

    Shapes: q [rows, heads, head_dim] rotated; keys and values [kv_heads, capacity, head_dim], keys rotated, capacity
    a multiple of 256 and everything in it finite -> [rows, heads * head_dim]. `window` keys are seen, the row's own
    included; None is all. Fewer than 16 rows are given only where the known-answer test found them alike.
    """
    rows, heads, head_dim = q.shape
    least = FLOOR_ROWS if rows >= FLOOR_ROWS else 1
    result = q.new_empty(rows, heads * head_dim)
    first = start
    while first < start + rows:
        panel = first // PANEL_KEYS * PANEL_KEYS
        last = min(start + rows, panel + PANEL_KEYS)
        result[first - start : last - start] = _attend_panel(
            q[first - start : last - start], keys, values, panel, first - panel, window, scale, least
        )
        first = last
    return result


def _attend_panel(
    q: Tensor, keys: Tensor, values: Tensor, panel: int, offset: int, window: int | None, scale: float, least: int
) -> Tensor:
    """Attend from rows that lie in one panel, the first of them `offset` positions into it. Shapes as above.

    They are padded to a multiple of `least`.
    """
    rows, heads, head_dim = q.shape
    kv_heads = keys.shape[0]
    # The query heads that share a KV head become more rows of it: no key is repeated.
    group = heads // kv_heads
    padded = -(-rows // least) * least * group
    padded += -padded % ASKING_ROWS
    asking = q.view(rows, kv_heads, group, head_dim).transpose(0, 1).reshape(kv_heads, rows * group, head_dim)
    if padded > rows * group:
        asking = F.pad(asking, (0, 0, 0, padded - rows * group))
    end = panel + PANEL_KEYS
    if window is None:
        mask = _mask(offset, rows, padded, group, PANEL_KEYS, None, q.dtype)
        out, lse = flash(asking, keys[:, panel:end], values[:, panel:end], mask, scale)
        if panel:
            out = join(*flash(asking, keys[:, :panel], values[:, :panel], None, scale), out, lse).to(q.dtype)
    else:
        seen = seen_from(panel, window)
        mask = _mask(panel - seen + offset, rows, padded, group, end - seen, window, q.dtype)
        out, _ = flash(asking, keys[:, seen:end], values[:, seen:end], mask, scale)
    out = out[:, : rows * group].reshape(kv_heads, rows, group, head_dim)
    return out.transpose(0, 1).reshape(rows, heads * head_dim)


def join(out: Tensor, lse: Tensor, own_out: Tensor, own_lse: Tensor) -> Tensor:
    """Weigh two results over different keys by their log-sum-exp. Effects: both are overwritten.

    Plain products and sums, no fused multiply-add, which a library may or may not use at the end of a loop.
    """
    top = torch.maximum(lse, own_lse)
    weight, own_weight = torch.exp(lse - top), torch.exp(own_lse - top)
    total = weight + own_weight
    return out.mul_(weight / total).add_(own_out.mul_(own_weight / total))


@lru_cache(8)
def _mask(offset: int, rows: int, padded: int, group: int, keys: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """Mask for rows that stand `offset`, `offset + 1`, … keys after the first of `keys`, to be added.

    Shapes: [1, 1, padded, keys]. Padding rows are left open, for a row that sees nothing would be NaN.
    """
    positions = torch.arange(rows)[:, None] + offset
    columns = torch.arange(keys)[None, :]
    visible = columns <= positions
    if window is not None:
        visible &= columns > positions - window
    mask = torch.zeros(1, 1, padded, keys, dtype=dtype)
    mask[0, 0, : rows * group].masked_fill_(~visible.repeat_interleave(group, dim=0), float("-inf"))
    return mask
