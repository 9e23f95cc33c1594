"""Who computes models here: the processor, or kernels on a device, and why."""

from contextlib import closing
from typing import TYPE_CHECKING, Any

from ..cybergraph.errors import NotFound
from .context import Session
from .text import size

if TYPE_CHECKING:
    from ..runtime.models.record import ModelRecord
    from ..runtime.models.registry import LoadedModel


def device() -> dict[str, Any]:
    """Describe the device that kernels would run on, or say why it is the processor."""
    from ..runtime.cuda.choice import look

    try:
        seen = look()
    except NotFound as error:
        return {"name": "cpu", "capability": None, "reason": error.message}
    return {"name": seen.name, "capability": seen.capability, "reason": None}


def backends(loaded: "LoadedModel", here: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Say who computes a model's rows on `device()`: those that may be sealed, and provisional ones."""
    from ..runtime.cuda.backends import choose_for_model, installed_here

    shape, installed = (loaded.config, loaded.geometry), installed_here()
    kinds = {"canonical": True, "provisional": False}
    return {
        kind: choose_for_model(*shape, here["capability"], installed, canonical=canonical)._asdict()
        for kind, canonical in kinds.items()
    }


def on_device(session: Session, record: "ModelRecord") -> dict[str, Any]:
    """Run a model's known-answer test on the device, and see what room it has there.

    Raises `UnsafeNumerics` where nothing may be sealed, `TierFull` where it finds no room, and as `open_device`.
    """
    from ..runtime.cuda import choice
    from ..runtime.engine import known_answer
    from ..runtime.geometry import Geometry

    geometry = Geometry.from_model(record.identity)
    processor = choice.open_device(session.registry.config(record), geometry)
    loaded = session.registry.load(record, processor.arithmetic)
    domain = known_answer(loaded, processor)
    domain.require_sound()
    with closing(processor.engine_pool(geometry, 0)) as pool:
        return {
            "domain": domain.name, "reason": None, "room_tokens": pool.capacity_blocks * geometry.block_size,
            "host_bytes": processor.host_bytes, "host_bytes_refused": processor.refused_host_bytes,
        }  # fmt: skip


def on_device_in_words(there: dict[str, Any]) -> str:
    """Say it on one line."""
    if there["reason"] is not None:
        return f"not on the device: {there['reason']}"
    below = f"{size(there['host_bytes'])} of host memory below"
    if there["host_bytes_refused"]:
        below += f", the system refused {size(there['host_bytes_refused'])} more"
    return f"on the device: domain {there['domain']}, room for {there['room_tokens']:,} tokens, {below}"


def device_in_words(here: dict[str, Any]) -> str:
    """Say it on one line."""
    return f"{here['name']}: {here['reason']}" if here["reason"] else f"{here['name']}, capability {here['capability']}"


def backends_in_words(chosen: dict[str, dict[str, str]]) -> list[str]:
    """Say it on a line for each kind of rows, or on one where both are alike."""
    if chosen["canonical"] == chosen["provisional"]:
        return [f"{chosen['canonical']['name']}: {chosen['canonical']['reason']}"]
    return [f"{kind} rows by {choice['name']}: {choice['reason']}" for kind, choice in chosen.items()]
