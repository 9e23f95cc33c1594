"""Rotary parameters of a `config.json`, in the layout of transformers 5 or the older one."""

from typing import Any, Final, NamedTuple

from .config_fields import Fields

_SCALING: Final[dict[str, tuple[str, ...]]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "high_freq_factor", "low_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
"""Rotation rules this runtime computes, with the parameters that each must have."""

_YARN_OPTIONAL: Final = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")
_YARN_LEAST, _YARN_MOST = 1e-4, 1e4
"""Bounds on numbers of `yarn` other than lengths: far beyond them cosines and logarithms are no numbers."""
_MOST_POSITIONS: Final = 1 << 31

_BASES: Final = {"SmolLM3ForCausalLM": 2_000_000.0}
_PARTS: Final = {"GlmForCausalLM": 0.5}
"""Architectures that may turn a part of each row, and the part where none is given."""


class Rotation(NamedTuple):
    """How a model rotates."""

    base: float
    scaling: tuple[tuple[str, str], ...]
    """Empty for plain rotation, else sorted pairs of parameter and its text."""
    rotary_dims: int
    positions: int
    """For how many the rule is made."""


def rope(fields: Fields, architecture: str, head_dim: int) -> Rotation:
    """Read the rotation.

    Raises `UnsupportedModel` for another rule (dynamic, longrope, ...), an unknown parameter or a bad value.
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
    default_base = _BASES.get(architecture, 10_000.0)
    base = fields.as_positive("rope_theta", parameters.pop("rope_theta", fields.get("rope_theta", default_base)))
    rotary_dims = _rotary_dims(fields, architecture, head_dim, parameters)
    positions = fields.count("max_position_embeddings")
    if kind in ("llama3", "yarn"):
        parameters = _original_length(fields, parameters)
    if kind == "yarn":
        scaling, made_for = _yarn(fields, parameters, base)
        return Rotation(base, scaling, rotary_dims, max(positions, made_for))
    values = _numbers(fields, kind, parameters)
    if kind == "llama3" and (high := values["high_freq_factor"]) <= values["low_freq_factor"]:
        raise fields.refuse("rope_parameters.high_freq_factor", "more than low_freq_factor", high)
    return Rotation(base, _texts(values, rope_type=kind) if values else (), rotary_dims, positions)


def _numbers(fields: Fields, kind: str, parameters: dict[str, Any], optional: tuple[str, ...] = ()) -> dict[str, float]:
    """Check that all parameters are numbers of the rule, and none is missing."""
    for name in sorted(parameters):
        if name not in (*_SCALING[kind], *optional):
            wanted = f"no such parameter for rope_type {kind!r}"
            raise fields.refuse(f"rope_parameters.{name}", wanted, parameters[name])
    names = {*_SCALING[kind], *parameters}
    return {name: fields.as_positive(f"rope_parameters.{name}", parameters.get(name)) for name in names}


def _texts(values: dict[str, float], **words: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({**{name: repr(value) for name, value in values.items()}, **words}.items()))


def _rotary_dims(fields: Fields, architecture: str, head_dim: int, parameters: dict[str, Any]) -> int:
    """Take the part that turns out of `parameters`, and count its numbers."""
    field, default = "partial_rotary_factor", _PARTS.get(architecture, 1.0)
    part = parameters.pop(field, fields.get(field, default))
    if architecture not in _PARTS:
        if part not in (None, 1.0):
            raise fields.refuse(field, "1.0", part)
        return head_dim
    rotary_dims = int(head_dim * min(fields.as_positive(field, part), 2.0))
    if rotary_dims % 2 or not 2 <= rotary_dims <= head_dim:
        raise fields.refuse(field, f"an even number of the {head_dim} of a head", part)
    return rotary_dims


def _original_length(fields: Fields, parameters: dict[str, Any]) -> dict[str, Any]:
    # transformers lets the top-level field win over the nested one, and the model's length stand in for both.
    field = "original_max_position_embeddings"
    inner = parameters.get(field, fields.get("max_position_embeddings"))
    return {**parameters, field: fields.get(field, inner)}


def _yarn(fields: Fields, parameters: dict[str, Any], base: float) -> tuple[tuple[tuple[str, str], ...], int]:
    """Read `yarn`: its texts, and for how many positions it is made.

    What was left to defaults is written out, and what has no effect is left out: equal rotations read alike.
    """
    truncate = parameters.pop("truncate", True)
    if type(truncate) is not bool:
        raise fields.refuse("rope_parameters.truncate", "true or false", truncate)
    given = {name: value for name, value in parameters.items() if value is not None or name not in _YARN_OPTIONAL}
    values = _numbers(fields, "yarn", {"beta_fast": 32.0, "beta_slow": 1.0} | given, _YARN_OPTIONAL)

    def require(name: str, wanted: str, *, holds: bool) -> None:
        if not holds:
            raise fields.refuse(f"rope_parameters.{name}", wanted, values[name])

    length = "original_max_position_embeddings"
    for name in sorted(values.keys() - {length}):
        bounds = f"a number from {_YARN_LEAST} to {_YARN_MOST:.0f}"
        require(name, bounds, holds=_YARN_LEAST <= values[name] <= _YARN_MOST)
    require("beta_fast", "more than beta_slow", holds=values["beta_fast"] > values["beta_slow"])
    if base <= 1:
        raise fields.refuse("rope_theta", "more than 1 beside yarn", base)
    made_for = values[length] * values["factor"]
    require(length, f"1 to {_MOST_POSITIONS}", holds=1 <= values[length] <= _MOST_POSITIONS)
    require("factor", f"no more than {_MOST_POSITIONS} positions", holds=made_for <= _MOST_POSITIONS)
    if "attention_factor" in values or not {"mscale", "mscale_all_dim"} <= values.keys():
        values = {name: value for name, value in values.items() if name not in ("mscale", "mscale_all_dim")}
    return _texts(values, rope_type="yarn", truncate=str(truncate).lower()), int(made_for)
