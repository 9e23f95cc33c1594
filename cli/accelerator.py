"""Who computes models here: the processor, or kernels on a device, and why."""

from typing import TYPE_CHECKING, Any

from ..cybergraph.errors import NotFound

if TYPE_CHECKING:
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


def device_in_words(here: dict[str, Any]) -> str:
    """Say it on one line."""
    return f"{here['name']}: {here['reason']}" if here["reason"] else f"{here['name']}, capability {here['capability']}"


def backends_in_words(chosen: dict[str, dict[str, str]]) -> list[str]:
    """Say it on a line for each kind of rows, or on one where both are alike."""
    if chosen["canonical"] == chosen["provisional"]:
        return [f"{chosen['canonical']['name']}: {chosen['canonical']['reason']}"]
    return [f"{kind} rows by {choice['name']}: {choice['reason']}" for kind, choice in chosen.items()]
