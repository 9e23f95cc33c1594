"""Which attention the GPU kernels compute: everything else is refused by name, before anything is launched.

>>> attention = Attention(heads=9, kv_heads=3, head_dim=64, page_size=16, dtype="bf16", scale=0.125, rotary_dims=64)
>>> attention.group, unsupported(attention)
(3, None)
>>> unsupported(replace(attention, head_dim=72, rotary_dims=72))
Refusal(field='head_dim', got=72, wanted='64, 80, 96, 128 or 256')
>>> unsupported(attention, capability=75).field
'kv_dtype'
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from ...cybergraph.errors import UnsupportedModel

__all__ = ["Attention", "Refusal", "replace", "require_supported", "unsupported"]

HEAD_DIMS: Final = (64, 80, 96, 128, 256)
PAGE_SIZES: Final = (16, 32, 64, 128)
DTYPES: Final = ("f32", "f16", "bf16")
MOST_GROUP: Final = 64
"""Query heads of one KV head: more would not fit in one tile of rows."""
MOST_POSITIONS: Final = 1 << 30
"""Positions are 32-bit in the kernels, with room for sums."""
LEAST_CAPABILITY: Final = 75
LEAST_CAPABILITY_BF16: Final = 80


@dataclass(frozen=True, slots=True)
class Attention:
    """What one layer computes, as integers and factors."""

    heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    """Tokens of one pool row."""
    dtype: str
    """`f32`, `f16` or `bf16`."""
    scale: float
    """Factor on the logits."""
    rotary_dims: int
    """Leading numbers of a row that turn with its position; 0 for a layer without position."""
    interleaved: bool = False
    """Which two numbers turn together: i with i + rotary_dims / 2, or, interleaved, 2i with 2i + 1."""
    window: int | None = None
    """Keys a row sees, its own included; None is all."""
    softcap: float | None = None
    """Logits go through `softcap * tanh(x / softcap)`."""
    rotated: bool = False
    """Whether K in the pages is rotated already."""
    scheme: str = "none"
    """How K and V are quantised in the pages."""

    @property
    def group(self) -> int:
        """Query heads of one KV head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True, slots=True)
class Refusal:
    """A field whose value the kernels do not compute."""

    field: str
    got: object
    wanted: str


def unsupported(attention: Attention, *, capability: int | None = None) -> Refusal | None:
    """Say what the kernels would compute wrongly or not at all, or None.

    `capability` is that of an NVIDIA device, such as 90; None asks about the shape alone. Pure.
    """
    a = attention
    checks: list[tuple[bool, str, object, str]] = [
        (a.dtype in DTYPES, "kv_dtype", a.dtype, "f32, f16 or bf16"),
        (a.scheme == "none", "kv_quant_scheme", a.scheme, "none"),
        (a.head_dim in HEAD_DIMS, "head_dim", a.head_dim, "64, 80, 96, 128 or 256"),
        (a.page_size in PAGE_SIZES, "block_size", a.page_size, "16, 32, 64 or 128"),
        (a.kv_heads >= 1, "num_kv_heads", a.kv_heads, "at least 1"),
        (
            a.kv_heads >= 1 and a.heads >= 1 and a.heads % a.kv_heads == 0 and a.group <= MOST_GROUP,
            "num_heads", a.heads, f"1 to {MOST_GROUP} times {a.kv_heads}",
        ),
        (
            0 <= a.rotary_dims <= a.head_dim and a.rotary_dims % 2 == 0,
            "rotary_dims", a.rotary_dims, f"even, 0 to {a.head_dim}",
        ),
        (a.window is None or 1 <= a.window <= MOST_POSITIONS, "window", a.window, "at least 1, or none"),
        (a.softcap is None or _factor(a.softcap), "softcap", a.softcap, "above 0, or none"),
        (_factor(a.scale), "scale", a.scale, "above 0"),
    ]  # fmt: skip
    if capability is not None:
        checks += [
            (capability >= LEAST_CAPABILITY, "capability", capability, f"at least {LEAST_CAPABILITY}"),
            (
                a.dtype != "bf16" or capability >= LEAST_CAPABILITY_BF16,
                "kv_dtype", a.dtype, f"f32 or f16 on a device below {LEAST_CAPABILITY_BF16}",
            ),
        ]  # fmt: skip
    return next((Refusal(field, got, wanted) for holds, field, got, wanted in checks if not holds), None)


def _factor(value: float) -> bool:
    return math.isfinite(value) and value > 0


def require_supported(attention: Attention, *, capability: int | None = None) -> None:
    """Raise `UnsupportedModel`, with the field and its value, for what `unsupported` names."""
    if refusal := unsupported(attention, capability=capability):
        raise UnsupportedModel(
            f"the GPU kernels take {refusal.field} {refusal.wanted}, not {refusal.got}",
            hint="run this model on the CPU",
            field=refusal.field,
            got=refusal.got,
        )
