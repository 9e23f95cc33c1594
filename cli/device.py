"""Where a model is computed: on the processor, or on a CUDA device."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from ..cybergraph.errors import CyberKVError, NotFound, UnsupportedModel
from .context import Session
from .options import SIZE
from .output import remark
from .text import size

if TYPE_CHECKING:
    from ..runtime.cuda.processor import DeviceProcessor
    from ..runtime.models.record import ModelRecord

Command = TypeVar("Command", bound=Callable[..., Any])

DEVICES: Final = ("auto", "cpu", "cuda")
"""The processor is the default until the kernels have been seen to run on a device."""


class Device(NamedTuple):
    """What was asked for."""

    name: str = "cpu"
    memory_bytes: int | None = None
    """For blocks on the device; None is most of what is free."""
    host_bytes: int | None = None
    """Host memory for blocks that leave it; None is a size that suits it."""
    not_there: str | None = None
    """What else was asked for and only the processor does."""


PROCESSOR: Final = Device()


def _of_a_device(ctx: click.Context, _param: click.Parameter, size_bytes: int | None) -> int | None:
    """Refuse memory of a device where none is asked for; `--device` is eager, so it is read by now."""
    if size_bytes is not None and ctx.params.get("device") == PROCESSOR.name:
        raise click.UsageError("--device-memory belongs to --device cuda or auto", ctx)
    return size_bytes


def device_options(command: Command) -> Command:
    """Add `--device` and `--device-memory`."""
    command = click.option(
        "--device-memory", metavar="SIZE", type=SIZE, callback=_of_a_device,
        help="Memory of the device for blocks; else 80 % of what is free once the model is loaded.",
    )(command)  # fmt: skip
    return click.option(
        "--device", type=click.Choice(DEVICES), default="cpu", show_default=True, envvar="CYBERKV_DEVICE",
        is_eager=True,
        help="Where to compute; `auto` takes a CUDA device that is there and can. Else $CYBERKV_DEVICE.",
    )(command)  # fmt: skip


def open_processor(session: Session, record: "ModelRecord", asked: Device) -> "DeviceProcessor | None":
    """Take a device for a model, or None for the processor. Nothing is loaded to it yet.

    Raises, where `cuda` was asked for, `NotFound` without a device, and `UnsupportedModel` with what it does not do.
    """
    if asked.name == "cpu":
        return None
    try:
        if asked.not_there is not None:
            raise UnsupportedModel(
                f"{asked.not_there} is not done on a device", hint="--device cpu computes on the processor",
                field="device", got=asked.name,
            )  # fmt: skip
        from ..runtime.cuda import choice
        from ..runtime.geometry import Geometry

        config, geometry = session.registry.config(record), Geometry.from_model(record.identity)
        return choice.open_device(config, geometry, memory_bytes=asked.memory_bytes, host_bytes=asked.host_bytes)
    except (NotFound, UnsupportedModel) as error:
        if asked.name == "cuda":
            raise
        say_why(session, error)
        return None


def free_device() -> None:
    """Let the memory of a device go that was taken and is used no more."""
    from ..runtime.cuda.choice import free_unused

    free_unused()


def say_less(session: Session, processor: "DeviceProcessor | None") -> None:
    """Say that the system gives less page-locked memory than is the default."""
    if session.verbose and processor is not None and processor.refused_host_bytes:
        given, refused = size(processor.host_bytes), size(processor.refused_host_bytes)
        remark(session, f"below the device are {given} of host memory: the system refused {refused} more")


def say_why(session: Session, error: CyberKVError) -> None:
    """Say, where it is asked for, why the processor computes although a device might have."""
    if session.verbose:
        remark(session, f"computing on the processor: {error.message}")
