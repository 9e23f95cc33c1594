# mypy: ignore-errors
"""Attention within one panel of 256 keys, and the joining of panels in ascending order.

What a row gets depends on its position and its keys alone: tiles of keys begin at multiples of their size, panels at
multiples of 256, and a tile or panel that a row does not see changes no bit of it. Log-sum-exps are to base 2.

Reductions name their operation, not `tl.max` or `tl.sum`: those are kernels themselves, and whether they are
interpreted is decided by whoever imports triton first.
"""

import triton
import triton.language as tl
from triton.language.standard import _elementwise_max as larger
from triton.language.standard import _sum_combine as added

from .rows import load_parts

PANEL_KEYS = tl.constexpr(256)


@triton.jit
def tanh(x):
    """Give tanh, within two units in the last place: a polynomial near zero, where the quotient would cancel."""
    z = x * x
    near = -5.70498872745e-3 * z + 2.06390887954e-2
    near = near * z - 5.37397155531e-2
    near = near * z + 1.33314422036e-1
    near = near * z - 3.33332819422e-1
    near = x + x * (z * near)
    e = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - e) / (1.0 + e)
    far = tl.where(x < 0, -far, far)
    return tl.where(tl.abs(x) < 0.625, near, far)


@triton.jit
def join(out, lse, panel_out, panel_lse):
    """Weigh two results over different keys by their log-sum-exp. Shapes: out [n, d], lse [n]; -inf is nothing."""
    top = tl.maximum(lse, panel_lse)
    base = tl.where(top == float("-inf"), 0.0, top)
    weight = tl.exp2(lse - base)
    panel_weight = tl.exp2(panel_lse - base)
    total = weight + panel_weight
    share = tl.where(total == 0.0, 1.0, total)
    joined = out * (weight / share)[:, None] + panel_out * (panel_weight / share)[:, None]
    return joined, tl.where(total == 0.0, float("-inf"), base + tl.log2(share))


@triton.jit
def attend_panel(
    q_first,
    q_second,
    q_rest,
    positions,
    panel,
    first_key,
    end_key,
    kv,
    table,
    base,
    cos,
    sin,
    kv_page,
    kv_part,
    kv_slot,
    table_row,
    inner,
    outer,
    window,
    shape: tl.constexpr,
):
    """Attend from rows at `positions` to the keys of one panel from `first_key` to `end_key` (excluded).

    `kv` points at one KV head of one layer; no key outside those bounds is read, nor its page. Gives the output
    [lanes, padded_dim] in float32 and its log-sum-exp [lanes], zeros and -inf for a row that sees none of them.
    """
    top = tl.full([shape.lanes], float("-inf"), tl.float32)
    total = tl.full([shape.lanes], 0.0, tl.float32)
    out = tl.full([shape.lanes, shape.padded_dim], 0.0, tl.float32)
    column = tl.arange(0, shape.padded_dim)
    low = tl.maximum(panel * PANEL_KEYS, first_key)
    high = tl.minimum((panel + 1) * PANEL_KEYS, end_key)
    for tile in range(low // shape.tile_keys * shape.tile_keys, high, shape.tile_keys):
        keys = tile + tl.arange(0, shape.tile_keys)
        real = (keys >= low) & (keys < high)
        page = tl.load(table + keys // shape.page_size, mask=real, other=0).to(tl.int64)
        rows = kv + page * kv_page + (keys % shape.page_size) * kv_slot
        k_first, k_second, k_rest = load_parts(
            rows, real, base + keys, cos, sin, table_row, shape, turn=not shape.rotated
        )  # fmt: skip
        logits = tl.full([shape.lanes, shape.tile_keys], 0.0, tl.float32)
        if shape.rotary_half > 0:
            logits = tl.dot(q_first, tl.trans(k_first), logits, input_precision="ieee")
            logits = tl.dot(q_second, tl.trans(k_second), logits, input_precision="ieee")
        if shape.rest > 0:
            logits = tl.dot(q_rest, tl.trans(k_rest), logits, input_precision="ieee")
        logits = logits * inner
        if shape.capped:
            logits = tanh(logits) * outer
        seen = real[None, :] & (keys[None, :] <= positions[:, None]) & (keys[None, :] > positions[:, None] - window)
        logits = tl.where(seen, logits, float("-inf"))
        new_top = tl.maximum(top, tl.reduce(logits, 1, larger))
        # Of a row that has seen nothing yet, infinities would be subtracted from each other.
        anchor = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp2(logits - anchor[:, None])
        keep = tl.exp2(top - anchor)
        total = total * keep + tl.reduce(weights, 1, added)
        inside = real[:, None] & (column < shape.head_dim)[None, :]
        v = tl.load(rows[:, None] + kv_part + column[None, :], mask=inside, other=0.0)
        out = tl.dot(weights.to(v.dtype), v, out * keep[:, None], input_precision="ieee")
        top = new_top
    share = tl.where(total == 0.0, 1.0, total)
    return out / share[:, None], tl.where(total == 0.0, float("-inf"), top + tl.log2(share))
