"""The kernels as functions of tensors. `runtime.cuda.reference` has the same functions without kernels.

Pages are a view of one layer of the pool as it is stored, `rows[:, layer]`: `[rows, K|V, page_size, kv_heads,
head_dim]` with any strides but for the last. K is raw, and turned on its way in; q is raw, too. A page table names rows
of the pool; entries that no row sees, behind a window or beyond the length, are not read and may hold anything.
Every function checks shapes first and raises `UnsupportedModel`, naming what it refuses, without a launch. What only
the device knows is a promise of the caller: lengths within the tables, rows within the pool, positions within the
tables of cosines.
"""

import torch
from torch import Tensor

from ..support import Attention
from .checks import capability_of, require_append, require_decode, require_prefill, require_words
from .copies import append_slots, copy_words
from .decode import decode_panels, merge_panels
from .panel import PANEL_KEYS
from .prefill import prefill_tiles
from .rowwise import linear, rms_norm, silu_mul
from .tiles import UNFUSED, chunk_tiles, decode_cut, factors, options, power_of_two, prefill_cut, shape_of, window

__all__ = [
    "append_rows", "gather_rows", "linear", "paged_decode", "paged_prefill", "rms_norm", "scatter_rows", "silu_mul",
]  # fmt: skip

COPIED_WORDS = 4096
"""32-bit words that one program copies."""


def paged_decode(
    q: Tensor, kv: Tensor, tables: Tensor, lengths: Tensor, bases: Tensor, cos: Tensor, sin: Tensor,
    attention: Attention,
) -> Tensor:  # fmt: skip
    """Attend from the last position of each of several sequences.

    Shapes: q [batch, heads, head_dim] raw; kv [rows, 2, page_size, kv_heads, head_dim]; tables [batch, pages] int32;
    lengths [batch] int32, the asking row included; bases [batch] int32, the position that a sequence's first key
    stands at; cos and sin [positions, rotary_dims / 2] float32 -> as q. Effects: takes `pages * page_size / 256 + 1`
    float32 rows for each row of q while it runs, so tables are best no wider than the longest sequence needs.
    Raises `UnsupportedModel`.
    """
    require_decode(q, kv, tables, lengths, bases, cos, sin, attention)
    batch, heads, head_dim = q.shape
    panels = -(-tables.shape[1] * attention.page_size // PANEL_KEYS.value)
    outs = torch.empty(batch, heads, panels, head_dim, dtype=torch.float32, device=q.device)
    lses = torch.empty(batch, heads, panels, dtype=torch.float32, device=q.device)
    result = torch.empty(batch, heads, head_dim, dtype=q.dtype, device=q.device)
    if batch == 0:
        return result
    cut, capability = decode_cut(attention), capability_of(q.device)
    decode_panels[(batch, attention.kv_heads, panels)](
        q, kv, tables, lengths, bases, cos, sin, outs, lses,
        q.stride(0), q.stride(1), *kv.stride()[:4], tables.stride(0), cos.stride(0), panels,
        *factors(attention), window(attention),
        shape=shape_of(attention, cut), **options(cut, capability),
    )  # fmt: skip
    merge_panels[(batch, heads)](
        outs, lses, lengths, result, panels, window(attention),
        head_dim=head_dim, padded_dim=power_of_two(head_dim), **UNFUSED,
    )  # fmt: skip
    return result


def paged_prefill(
    q: Tensor, kv: Tensor, tables: Tensor, starts: Tensor, lengths: Tensor, bases: Tensor, cos: Tensor, sin: Tensor,
    attention: Attention,
) -> Tensor:  # fmt: skip
    """Attend from chunks of rows whose own K and V stand in the pages already (`append_rows`).

    Row i of request r stands at `starts[r] + i`; rows at `lengths[r]` and after are padding, and zeros come out. What
    stands after a chunk is not seen by it.
    Shapes: q [batch, rows, heads, head_dim] raw; starts [batch] int32; the others as in `paged_decode` -> as q.
    Raises `UnsupportedModel`.
    """
    require_prefill(q, kv, tables, starts, lengths, bases, cos, sin, attention)
    batch, rows, heads, head_dim = q.shape
    result = torch.zeros(batch, rows, heads, head_dim, dtype=q.dtype, device=q.device)
    if batch * rows == 0:
        return result
    cut = prefill_cut(attention)
    prefill_tiles[(batch, attention.kv_heads, chunk_tiles(attention, rows))](
        q, kv, tables, starts, lengths, bases, cos, sin, result,
        q.stride(0), q.stride(1), q.stride(2), *kv.stride()[:4], tables.stride(0), cos.stride(0), rows,
        *factors(attention), window(attention),
        shape=shape_of(attention, cut), **options(cut, capability_of(q.device)),
    )  # fmt: skip
    return result


def append_rows(
    kv: Tensor, k: Tensor, v: Tensor, tables: Tensor, requests: Tensor, positions: Tensor, attention: Attention
) -> None:
    """Write rows to the slots of their positions; a row at a negative position is padding and left out.

    Shapes: k and v [n, kv_heads, head_dim]; requests and positions [n] int32, no two the same; kv and tables as in
    `paged_decode`. Effects: no other slot is written. Raises `UnsupportedModel`.
    """
    require_append(kv, k, v, tables, requests, positions, attention)
    if k.shape[0] == 0:
        return
    append_slots[(k.shape[0], attention.kv_heads)](
        kv, k, v, tables, requests, positions,
        *kv.stride()[:4], k.stride(0), k.stride(1), v.stride(0), v.stride(1), tables.stride(0),
        page_size=attention.page_size, head_dim=attention.head_dim, padded_dim=power_of_two(attention.head_dim),
        num_warps=1, **UNFUSED,
    )  # fmt: skip


def gather_rows(rows: Tensor, indices: Tensor, staging: Tensor) -> None:
    """Copy pool rows `indices[i]` to row i of staging, bit for bit.

    Shapes: rows [capacity, ...], of the pool or of some of its layers; indices [n] int32; staging [n, ...]. What comes
    after the first dimension lies in one piece, of a multiple of 4 bytes. Raises `UnsupportedModel`.
    """
    source, target = require_words(rows, indices, staging)
    _copy(source, target, indices, gather=True)


def scatter_rows(rows: Tensor, indices: Tensor, staging: Tensor) -> None:
    """Copy row i of staging to pool row `indices[i]`, no two the same. Shapes and errors as `gather_rows`."""
    target, source = require_words(rows, indices, staging)
    _copy(source, target, indices, gather=False)


def _copy(source: Tensor, target: Tensor, indices: Tensor, *, gather: bool) -> None:
    words = source.shape[1]
    if len(indices) == 0:
        return
    copy_words[(len(indices), -(-words // COPIED_WORDS))](
        source, target, indices, source.stride(0), target.stride(0), words, gather=gather, block=COPIED_WORDS,
        num_warps=8, **UNFUSED,
    )  # fmt: skip
