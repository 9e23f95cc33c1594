"""Who computes a model's rows, and why: a choice of what is here, made once, that a person can read.

>>> attention = Attention(heads=8, kv_heads=2, head_dim=64, page_size=16, dtype="bf16", scale=0.125, rotary_dims=64)
>>> both = frozenset({"triton", "flashinfer"})
>>> choose_backend(attention, 90, both, theta=10000.0, canonical=True).name
'triton'
>>> choose_backend(attention, 90, both, theta=10000.0, canonical=False).name
'flashinfer'
>>> choose_backend(attention, None, both, theta=10000.0, canonical=False)
Choice(name='cpu', reason='no CUDA device')
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Final, Literal, NamedTuple

from ..geometry import Geometry
from ..models.config import DecoderConfig
from .arithmetic import Kernels
from .cache import attentions_of
from .flashinfer_decode import FlashInferDecode
from .support import Attention, unsupported

Name = Literal["cpu", "triton", "flashinfer"]

FLASHINFER_HEAD_DIMS: Final = (64, 128, 256)
FLASHINFER_DTYPES: Final = ("f16", "bf16")


class Choice(NamedTuple):
    """Who computes, and the reason in words."""

    name: Name
    reason: str


def choose_backend(
    attention: Attention, capability: int | None, installed: frozenset[str], *, theta: float | None, canonical: bool
) -> Choice:
    """Choose for one kind of layer. Pure.

    `capability` is that of the NVIDIA device, such as 90, or None where there is none; `installed` names packages;
    `theta` is the base of the rotation, or None where its speeds are scaled. `canonical` rows are those that may be
    sealed.
    """
    if capability is None:
        return Choice("cpu", "no CUDA device")
    if "triton" not in installed:
        return Choice("cpu", "triton is not installed")
    if refusal := unsupported(attention, capability=capability):
        return Choice("cpu", f"the GPU kernels take {refusal.field} {refusal.wanted}, not {refusal.got}")
    if canonical:
        return Choice("triton", "canonical rows: the order of its sums is fixed")
    if "flashinfer" not in installed:
        return Choice("triton", "flashinfer is not installed")
    if reason := _not_by_flashinfer(attention, theta):
        return Choice("triton", f"flashinfer {reason}")
    return Choice("flashinfer", "provisional rows")


def _not_by_flashinfer(attention: Attention, theta: float | None) -> str | None:
    a = attention
    checks = [
        (a.dtype in FLASHINFER_DTYPES, f"does not take {a.dtype}"),
        (a.head_dim in FLASHINFER_HEAD_DIMS, f"does not take heads of {a.head_dim}"),
        (not a.rotated, "would turn K that is rotated already"),
        (a.rotary_dims in (0, a.head_dim), "turns whole rows or none"),
        (a.rotary_dims == 0 or not a.interleaved, "does not turn interleaved pairs"),
        (a.rotary_dims == 0 or theta is not None, "does not turn by scaled speeds"),
    ]
    return next((reason for holds, reason in checks if not holds), None)


def choose_for_model(
    config: DecoderConfig, geometry: Geometry, capability: int | None, installed: frozenset[str], *, canonical: bool
) -> Choice:
    """Choose for all layers of a model alike: what takes the layer that takes least. Pure."""
    theta = theta_of(config)
    choices = [
        choose_backend(attention, capability, installed, theta=theta, canonical=canonical)
        for attention in attentions_of(config, geometry)
    ]
    return min(choices, key=lambda choice: _RANKS.index(choice.name))


_RANKS: Final = ("cpu", "triton", "flashinfer")


def theta_of(config: DecoderConfig) -> float | None:
    """Give the base of a plain rotation, or None."""
    return None if config.rope_scaling else config.rope_base


def installed_here() -> frozenset[str]:
    """Name the packages that are installed, without importing them."""
    return frozenset(name for name in ("triton", "flashinfer") if find_spec(name) is not None)


def kernels_of(name: Literal["triton", "flashinfer"], theta: float | None) -> Kernels:
    """Give what a choice names. Effects: imports it, which takes a second."""
    from .kernels import launch

    return launch if name == "triton" else FlashInferDecode(import_module("flashinfer"), launch, theta)
