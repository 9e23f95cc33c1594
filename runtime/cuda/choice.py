"""Whether a model is computed on a CUDA device here, or why not."""

import gc
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

import torch

from ...cybergraph.errors import NotFound
from ..geometry import Geometry
from ..models.config import DecoderConfig
from .backends import choose_for_model, installed_here, kernels_of, theta_of
from .cache import attentions_of
from .device import TorchDevice
from .processor import DeviceProcessor
from .support import require_supported


@dataclass(frozen=True, slots=True)
class Seen:
    """A device as its driver describes it."""

    name: str
    capability: int
    """Of an NVIDIA device, such as 90."""
    memory_bytes: int

    @property
    def kind(self) -> str:
        """What domains of such devices are told apart by."""
        return f"cuda{self.capability}"


def look() -> Seen:
    """Find the first CUDA device. Raises `NotFound` where there is none that kernels run on."""
    if torch.version.hip is not None:
        raise _absent("this torch is built for ROCm, and the kernels have not run there")
    if not torch.cuda.is_available():
        built = torch.version.cuda is not None
        raise _absent("torch sees none" if built else "this torch is built without CUDA")
    if find_spec("triton") is None:
        raise _absent("triton is not installed")
    seen = torch.cuda.get_device_properties(0)
    return Seen(seen.name, 10 * seen.major + seen.minor, seen.total_memory)


def _absent(reason: str) -> NotFound:
    return NotFound(
        f"no CUDA device: {reason}",
        hint="--device cpu computes on the processor; `cyberkv doctor` says what is here",
        device="cuda",
        reason=reason,
    )


def require_on_device(config: DecoderConfig, geometry: Geometry, seen: Seen) -> None:
    """Raise `UnsupportedModel`, naming field and value, for a model that the kernels do not compute there. Pure."""
    for attention in dict.fromkeys(attentions_of(config, geometry)):
        require_supported(attention, capability=seen.capability)


def open_device(
    config: DecoderConfig, geometry: Geometry, *, memory_bytes: int | None = None, host_bytes: int | None = None
) -> DeviceProcessor:
    """Take the first CUDA device for a model. Nothing is loaded to it yet.

    The pool will get `memory_bytes`, by default most of what is free then, and `host_bytes` of page-locked host memory
    below it. Effects: imports kernels, which takes a second. Raises `NotFound`, `UnsupportedModel`.
    """
    seen = look()
    require_on_device(config, geometry, seen)
    choice = choose_for_model(config, geometry, seen.capability, installed_here(), canonical=False)
    name: Literal["triton", "flashinfer"] = "flashinfer" if choice.name == "flashinfer" else "triton"
    return DeviceProcessor(
        TorchDevice(), kernels_of(name, theta_of(config)), seen.kind, memory_bytes=memory_bytes, host_bytes=host_bytes,
        captures=name == "triton",  # FlashInfer plans on the host
    )  # fmt: skip


def free_unused() -> None:
    """Give back what a device was taken for and is used no more: a pool and its copies refer to each other."""
    gc.collect()
    with suppress(RuntimeError):  # of a device that has failed
        torch.cuda.empty_cache()
