"""Rotary parameters of a `config.json`, in the layout of transformers 5 or the older one."""

from typing import Any, Final

from .config_fields import Fields

_SCALING: Final[dict[str, tuple[str, ...]]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "high_freq_factor", "low_freq_factor", "original_max_position_embeddings"),
}
"""Rotation rules this runtime computes, with their parameters."""


def rope(fields: Fields, architecture: str) -> tuple[float, tuple[tuple[str, str], ...]]:
    """Read the base and the scaling: empty for plain rotation, else sorted pairs of parameter and its text.

    Raises `UnsupportedModel` for another rule (dynamic, yarn, longrope, ...) or an unknown parameter.
    """
    old, new = fields.get("rope_scaling"), fields.get("rope_parameters")
    if old and new and old != new:
        raise fields.refuse("rope_scaling", "the same as rope_parameters, or nothing")
    given = old or new or {}
    if not isinstance(given, dict):
        raise fields.refuse("rope_scaling" if old else "rope_parameters", "a map")
    parameters = dict(given)
    kinds = [parameters.pop(name, None) for name in ("rope_type", "type")]
    kinds = [kind for kind in kinds if kind is not None] or ["default"]
    kind = kinds[0]
    if kind != kinds[-1] or not isinstance(kind, str) or kind not in _SCALING:
        raise fields.refuse("rope_type", f"one of {', '.join(_SCALING)}", kind)
    default_base = 2_000_000.0 if architecture == "SmolLM3ForCausalLM" else 10_000.0
    base = fields.as_positive("rope_theta", parameters.pop("rope_theta", fields.get("rope_theta", default_base)))
    if parameters.pop("partial_rotary_factor", 1.0) != 1.0:
        raise fields.refuse("partial_rotary_factor", "1.0", given["partial_rotary_factor"])
    if kind == "llama3":
        parameters = _original_length(fields, parameters)
    for name in sorted(parameters):
        if name not in _SCALING[kind]:
            wanted = f"no such parameter for rope_type {kind!r}"
            raise fields.refuse(f"rope_parameters.{name}", wanted, parameters[name])
    values = {name: fields.as_positive(f"rope_parameters.{name}", parameters.get(name)) for name in _SCALING[kind]}
    if kind == "llama3" and (high := values["high_freq_factor"]) <= values["low_freq_factor"]:
        raise fields.refuse("rope_parameters.high_freq_factor", "more than low_freq_factor", high)
    if kind == "default":
        return base, ()
    return base, (*((name, repr(value)) for name, value in sorted(values.items())), ("rope_type", kind))


def _original_length(fields: Fields, parameters: dict[str, Any]) -> dict[str, Any]:
    # transformers lets the top-level field win over the nested one, and the model's length stand in for both.
    field = "original_max_position_embeddings"
    inner = parameters.get(field, fields.get("max_position_embeddings"))
    return {**parameters, field: fields.get(field, inner)}
