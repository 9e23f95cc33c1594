"""What the kernels compute, in plain tensors and in float64: the same functions, for tests and for reading.

Shapes, effects and promises are those of `runtime.cuda.kernels.launch`.
"""

import torch
from torch import Tensor

from .support import Attention


def turned(rows: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
    """Rotate rows by position, in float64. Shapes: rows [n, heads, head_dim], positions [n] -> as rows."""
    wide = rows.double()
    dims = attention.rotary_dims
    if not dims:
        return wide
    pairs = torch.arange(dims).view(-1, 2).T if attention.interleaved else torch.arange(dims).view(2, -1)
    first, second = pairs.to(rows.device)
    c, s = (table[positions.long()].double()[:, None] for table in (cos, sin))
    result = wide.clone()
    result[..., first] = wide[..., first] * c - wide[..., second] * s
    result[..., second] = wide[..., second] * c + wide[..., first] * s
    return result


def _attend(q: Tensor, keys: Tensor, values: Tensor, first: int, position: int, attention: Attention) -> Tensor:
    """Attend from one turned row at `position` to turned keys, of which the first stands at `first`."""
    low = 0 if attention.window is None else max(0, position - attention.window + 1)
    seen = slice(low - first, position + 1 - first)
    k, v = (each[seen].repeat_interleave(attention.group, dim=1) for each in (keys, values))
    logits = torch.einsum("hd,khd->hk", q, k) * attention.scale
    if attention.softcap is not None:
        logits = attention.softcap * torch.tanh(logits / attention.softcap)
    return torch.einsum("hk,khd->hd", logits.softmax(-1), v)


def paged_prefill(
    q: Tensor, kv: Tensor, tables: Tensor, starts: Tensor, lengths: Tensor, bases: Tensor, cos: Tensor, sin: Tensor,
    attention: Attention,
) -> Tensor:  # fmt: skip
    """See `launch.paged_prefill`."""
    result = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    for request in range(q.shape[0]):
        start, length, base = (int(each[request]) for each in (starts, lengths, bases))
        # Pages that only a window has left behind are not looked at: their entries may be anything.
        first = 0 if attention.window is None else max(0, start - attention.window + 1)
        seen = torch.arange(first, length, device=q.device)
        page = tables[request, seen // attention.page_size].long()
        keys, values = kv[page, :, seen % attention.page_size].unbind(1)
        wide = keys.double() if attention.rotated else turned(keys, base + seen, cos, sin, attention)
        for row in range(min(q.shape[1], length - start)):
            position = start + row
            asking = turned(q[request, row : row + 1], torch.tensor([base + position]), cos, sin, attention)[0]
            out = _attend(asking, wide, values.double(), first, position, attention)
            result[request, row] = out.to(q.dtype)
    return result


def paged_decode(
    q: Tensor, kv: Tensor, tables: Tensor, lengths: Tensor, bases: Tensor, cos: Tensor, sin: Tensor,
    attention: Attention,
) -> Tensor:  # fmt: skip
    """See `launch.paged_decode`."""
    return paged_prefill(q[:, None], kv, tables, lengths - 1, lengths, bases, cos, sin, attention)[:, 0]


def append_rows(
    kv: Tensor, k: Tensor, v: Tensor, tables: Tensor, requests: Tensor, positions: Tensor, attention: Attention
) -> None:
    """See `launch.append_rows`."""
    real = positions >= 0
    page = tables[requests[real].long(), positions[real] // attention.page_size].long()
    offset = (positions[real] % attention.page_size).long()
    kv[page, 0, offset] = k[real]
    kv[page, 1, offset] = v[real]


def gather_rows(rows: Tensor, indices: Tensor, staging: Tensor) -> None:
    """See `launch.gather_rows`."""
    staging.copy_(rows[indices.long()])


def scatter_rows(rows: Tensor, indices: Tensor, staging: Tensor) -> None:
    """See `launch.scatter_rows`."""
    rows[indices.long()] = staging


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See `launch.linear`. One row at a time, so that here, too, how many there are changes no bit of one."""
    wide = weight.double()
    rows = [torch.mv(wide, row) for row in x.double()]
    result = torch.stack(rows) if rows else wide.new_empty(0, len(weight))
    return (result if bias is None else result + bias.double()).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `launch.rms_norm`."""
    wide = x.double()
    wide = wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    return weight * wide.to(x.dtype)


def silu_mul(gate_up: Tensor) -> Tensor:
    """See `launch.silu_mul`."""
    gate, up = gate_up.chunk(2, dim=-1)
    wide = gate.double()
    return (wide / (1 + torch.exp(-wide))).to(gate.dtype) * up
