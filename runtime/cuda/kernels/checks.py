"""Whether tensors have the shapes that a kernel will read: asked before every launch, of what the host knows."""

import torch
from torch import Tensor

from ....cybergraph.errors import UnsupportedModel
from ...quant import DTYPES
from ..support import DTYPES as KERNEL_DTYPE_NAMES
from ..support import LEAST_CAPABILITY_BF16, Attention, require_supported
from .tiles import chunk_tiles, tile_rows

KERNEL_DTYPES = {DTYPES[name] for name in KERNEL_DTYPE_NAMES}
MOST_COLUMNS = 1 << 15
"""A row that is normalised lies in the registers of one program."""
MOST_TILES = 65535
"""Programs of a grid's last dimension."""
WORD_BYTES = 4


def require(holds: bool, field: str, got: object, wanted: object) -> None:  # noqa: FBT001 - reads as a sentence
    """Raise `UnsupportedModel` with the field and its value."""
    if not holds:
        raise UnsupportedModel(
            f"the GPU kernels take {field} {wanted}, not {got}", hint="a fault of the program", field=field, got=got
        )


def capability_of(device: torch.device) -> int | None:
    """Give the capability of an NVIDIA device, such as 90, or None."""
    if device.type != "cuda" or torch.version.hip is not None:
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def _require_tensor(
    name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    require(tuple(tensor.shape) == shape, f"{name}.shape", tuple(tensor.shape), shape)
    require(tensor.dtype == dtype, f"{name}.dtype", str(tensor.dtype), dtype)
    require(tensor.device == device, f"{name}.device", str(tensor.device), device)
    require(tensor.numel() == 0 or tensor.stride(-1) == 1, f"{name}.stride", tensor.stride(), "1 in the last dimension")


def _require_pages(kv: Tensor, tables: Tensor, batch: int, attention: Attention) -> None:
    a = attention
    require_supported(a, capability=capability_of(kv.device))
    require(kv.ndim == 5, "kv.shape", tuple(kv.shape), "of five dimensions")
    shape = (kv.shape[0], 2, a.page_size, a.kv_heads, a.head_dim)
    _require_tensor("kv", kv, shape, DTYPES[a.dtype], kv.device)
    require(tables.ndim == 2, "tables.shape", tuple(tables.shape), "of two dimensions")
    _require_tensor("tables", tables, (batch, tables.shape[1]), torch.int32, kv.device)


def _require_positions(
    kv: Tensor, tables: Tensor, bases: Tensor, cos: Tensor, sin: Tensor, attention: Attention
) -> None:
    _require_tensor("bases", bases, (tables.shape[0],), torch.int32, kv.device)
    if not attention.rotary_dims:
        return
    require(cos.ndim == 2, "cos.shape", tuple(cos.shape), "of two dimensions")
    for name, table in (("cos", cos), ("sin", sin)):
        _require_tensor(name, table, (cos.shape[0], attention.rotary_dims // 2), torch.float32, kv.device)
    require(sin.stride() == cos.stride(), "sin.stride", sin.stride(), cos.stride())


def require_decode(
    q: Tensor, kv: Tensor, tables: Tensor, lengths: Tensor, bases: Tensor, cos: Tensor, sin: Tensor,
    attention: Attention,
) -> None:  # fmt: skip
    """Raise `UnsupportedModel` for what `paged_decode` does not take."""
    batch = q.shape[0]
    _require_pages(kv, tables, batch, attention)
    _require_tensor("q", q, (batch, attention.heads, attention.head_dim), kv.dtype, kv.device)
    _require_tensor("lengths", lengths, (batch,), torch.int32, kv.device)
    _require_positions(kv, tables, bases, cos, sin, attention)


def require_prefill(
    q: Tensor, kv: Tensor, tables: Tensor, starts: Tensor, lengths: Tensor, bases: Tensor, cos: Tensor, sin: Tensor,
    attention: Attention,
) -> None:  # fmt: skip
    """Raise `UnsupportedModel` for what `paged_prefill` does not take."""
    require(q.ndim == 4, "q.shape", tuple(q.shape), "of four dimensions")
    batch = q.shape[0]
    _require_pages(kv, tables, batch, attention)
    fits = chunk_tiles(attention, q.shape[1]) <= MOST_TILES
    require(fits, "q.shape", tuple(q.shape), f"of at most {(MOST_TILES - 1) * tile_rows(attention)} rows")
    _require_tensor("q", q, (batch, q.shape[1], attention.heads, attention.head_dim), kv.dtype, kv.device)
    _require_tensor("starts", starts, (batch,), torch.int32, kv.device)
    _require_tensor("lengths", lengths, (batch,), torch.int32, kv.device)
    _require_positions(kv, tables, bases, cos, sin, attention)


def require_append(
    kv: Tensor, k: Tensor, v: Tensor, tables: Tensor, requests: Tensor, positions: Tensor, attention: Attention
) -> None:
    """Raise `UnsupportedModel` for what `append_rows` does not take."""
    _require_pages(kv, tables, tables.shape[0], attention)
    rows = (k.shape[0], attention.kv_heads, attention.head_dim)
    _require_tensor("k", k, rows, kv.dtype, kv.device)
    _require_tensor("v", v, rows, kv.dtype, kv.device)
    _require_tensor("requests", requests, (k.shape[0],), torch.int32, kv.device)
    _require_tensor("positions", positions, (k.shape[0],), torch.int32, kv.device)


def require_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raise `UnsupportedModel` for what `linear` does not take."""
    require(weight.ndim == 2, "weight.shape", tuple(weight.shape), "of two dimensions")
    require(weight.numel() > 0, "weight.shape", tuple(weight.shape), "of at least one input and output")
    require(weight.is_contiguous(), "weight.stride", weight.stride(), "in one piece")
    require(x.ndim == 2, "x.shape", tuple(x.shape), "of two dimensions")
    _require_element(x)
    _require_tensor("x", x, (x.shape[0], weight.shape[1]), x.dtype, weight.device)
    _require_tensor("weight", weight, tuple(weight.shape), x.dtype, x.device)
    if bias is not None:
        _require_tensor("bias", bias, weight.shape[:1], x.dtype, x.device)


def require_norm(x: Tensor, weight: Tensor) -> None:
    """Raise `UnsupportedModel` for what `rms_norm` does not take."""
    require(x.ndim in (2, 3), "x.shape", tuple(x.shape), "of two or three dimensions")
    require(1 <= x.shape[-1] <= MOST_COLUMNS, "x.shape", tuple(x.shape), f"of 1 to {MOST_COLUMNS} columns")
    _require_element(x)
    _require_tensor("x", x, tuple(x.shape), x.dtype, x.device)
    shape = x.shape[-1:] if weight.ndim == 1 else x.shape[1:]
    _require_tensor("weight", weight, tuple(shape), x.dtype, x.device)
    require(weight.is_contiguous(), "weight.stride", weight.stride(), "in one piece")


def require_silu(gate_up: Tensor) -> None:
    """Raise `UnsupportedModel` for what `silu_mul` does not take."""
    shape = tuple(gate_up.shape)
    require(len(shape) == 2 and shape[1] > 0 and shape[1] % 2 == 0, "gate_up.shape", shape, "[n, 2 * columns]")
    _require_element(gate_up)
    _require_tensor("gate_up", gate_up, shape, gate_up.dtype, gate_up.device)


def _require_element(rows: Tensor) -> None:
    require(rows.dtype in KERNEL_DTYPES, "dtype", str(rows.dtype), "f32, f16 or bf16")
    old = (capability_of(rows.device) or LEAST_CAPABILITY_BF16) < LEAST_CAPABILITY_BF16
    require(rows.dtype != torch.bfloat16 or not old, "dtype", str(rows.dtype), "f32 or f16 on this device")


def require_words(rows: Tensor, indices: Tensor, staging: Tensor) -> tuple[Tensor, Tensor]:
    """Give rows and staging as 32-bit words, [rows, words] each. Raises `UnsupportedModel` where they are not."""
    shape = (indices.shape[0], *rows.shape[1:])
    require(tuple(staging.shape) == shape, "staging.shape", tuple(staging.shape), shape)
    require(staging.dtype == rows.dtype, "staging.dtype", str(staging.dtype), rows.dtype)
    require(indices.dtype == torch.int32 and indices.ndim == 1, "indices.dtype", str(indices.dtype), "[n] int32")
    for tensor in (indices, staging):
        require(tensor.device == rows.device, "device", str(tensor.device), rows.device)
    return _words("rows", rows), _words("staging", staging)


def _words(name: str, rows: Tensor) -> Tensor:
    size = rows.element_size()
    steps = rows.stride(0) * size, rows.storage_offset() * size, rows[:1].numel() * size
    require(rows[:1].is_contiguous(), f"{name}.stride", rows.stride(), "one piece after the first dimension")
    require(not any(step % WORD_BYTES for step in steps), f"{name}.stride", steps, f"multiples of {WORD_BYTES} bytes")
    return rows.flatten(1).view(torch.int32)
