"""Which keys each layer of a model sees, and whether it rotates them."""

from dataclasses import dataclass

from .config_fields import Fields

_MISTRAL_WINDOW = 4096
"""What an absent `sliding_window` means for Mistral; null means none."""


@dataclass(frozen=True, slots=True)
class LayerKind:
    """How one layer attends."""

    window: int | None = None
    """Keys a row sees, its own included; None is all."""
    rotated: bool = True
    """False for layers without position (NoPE)."""


def layer_kinds(fields: Fields, architecture: str, num_layers: int) -> tuple[LayerKind, ...]:
    """Derive the kind of every layer. Raises `UnsupportedModel` where the fields contradict each other."""
    if architecture in ("LlamaForCausalLM", "MistralForCausalLM", "GlmForCausalLM"):
        mistral = architecture == "MistralForCausalLM"
        window = _window(fields, _MISTRAL_WINDOW) if mistral else None
        expected = "full_attention" if window is None else "sliding_attention"
        if _layer_types(fields, num_layers, [expected] * num_layers) != [expected] * num_layers:
            raise fields.refuse("layer_types", f"{expected} on every layer")
        if not mistral and fields.get("sliding_window") is not None:
            raise fields.refuse("sliding_window", f"nothing: {architecture} has no windows")
        return (LayerKind(window=window),) * num_layers
    window = _window(fields, None) if fields.flag("use_sliding_window", default=False) else None
    rotated = _rotated(fields, num_layers) if architecture == "SmolLM3ForCausalLM" else [True] * num_layers
    if window is None:
        slides = [False] * num_layers
    elif architecture == "SmolLM3ForCausalLM":
        slides = [not turns for turns in rotated]
    else:
        first = fields.get("max_window_layers")
        if type(first) is not int or first < 0:
            raise fields.refuse("max_window_layers", "the number of layers without window")
        slides = [index >= first for index in range(num_layers)]
    default = ["sliding_attention" if slide else "full_attention" for slide in slides]
    types = _layer_types(fields, num_layers, default)
    if window is None and "sliding_attention" in types:
        raise fields.refuse("layer_types", "no sliding_attention without use_sliding_window and sliding_window")
    return tuple(
        LayerKind(window=window if kind == "sliding_attention" else None, rotated=turns)
        for kind, turns in zip(types, rotated, strict=True)
    )


def _window(fields: Fields, default: int | None) -> int | None:
    return None if fields.get("sliding_window", default) is None else fields.count("sliding_window", default)


def _layer_types(fields: Fields, num_layers: int, default: list[str]) -> list[str]:
    types = fields.get("layer_types")
    if types is None:
        return default
    known = ("full_attention", "sliding_attention")
    if not isinstance(types, list) or len(types) != num_layers or not all(kind in known for kind in types):
        raise fields.refuse("layer_types", f"{num_layers} of {' and '.join(known)}")
    return types


def _rotated(fields: Fields, num_layers: int) -> list[bool]:
    marks = fields.get("no_rope_layers")
    if marks is None:
        interval = fields.count("no_rope_layer_interval", 4)
        return [(index + 1) % interval != 0 for index in range(num_layers)]
    # Despite its name the list holds 1 for the layers that do rotate.
    if not isinstance(marks, list) or len(marks) < num_layers or not all(mark in (0, 1) for mark in marks):
        raise fields.refuse("no_rope_layers", f"at least {num_layers} of 0 and 1")
    return [bool(mark) for mark in marks[:num_layers]]
