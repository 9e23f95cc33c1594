"""`config.json` from the metadata of a GGUF file."""

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...cybergraph.errors import UnsupportedModel
from .config_fields import ARCHITECTURES

ROPE_FACTORS: Final = "rope_freqs.weight"
"""Tensor that divides the rotation frequencies."""

_ARCHITECTURES: Final = {
    kind: name for name, kind in ARCHITECTURES.items() if kind in ("llama", "qwen2", "qwen3", "smollm3")
}

_FIELDS: Final = {
    "block_count": "num_hidden_layers", "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps", "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
}  # fmt: skip

# Keys that say nothing new, with the values that keep it so; None is any value.
_NEUTRAL: Final[dict[str, tuple[object, ...] | None]] = {
    "vocab_size": None, "tensor_data_layout": None, "rope.scaling.finetuned": None, "expert_count": (0,),
    "rope.scaling.original_context_length": None, "expert_used_count": (0,), "attention.causal": (True,),
    "rope.scaling.type": ("none", "linear", "yarn"), "rope.scaling.factor": None,
    "rope.scaling.attn_factor": (1.0,), "rope.scaling.yarn_beta_fast": None,
    "rope.scaling.yarn_beta_slow": None, "rope.dimension_count": None, "attention.value_length": None,
}  # fmt: skip

_YARN: Final = {
    "rope.scaling.factor": "factor", "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.yarn_beta_fast": "beta_fast", "rope.scaling.yarn_beta_slow": "beta_slow",
}  # fmt: skip


def config_from_gguf(
    metadata: Mapping[str, Any], *, vocab_size: int, tied: bool, rope_factors: NDArray[np.float32] | None
) -> dict[str, Any]:
    """Build what `DecoderConfig.from_hf` reads. Raises `UnsupportedModel` naming a key this would misread."""
    kind = metadata.get("general.architecture")
    if kind not in _ARCHITECTURES:
        raise _refused("general.architecture", kind, f"one of {', '.join(_ARCHITECTURES)}")
    prefix = f"{kind}."
    given = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    for key, value in given.items():
        if key not in _FIELDS and (key not in _NEUTRAL or value not in (_NEUTRAL[key] or (value,))):
            raise _refused(prefix + key, value, "this key to be absent")
    config = {_FIELDS[key]: value for key, value in given.items() if key in _FIELDS}
    # A file without this key has as many key-value heads as query heads.
    config.setdefault("num_key_value_heads", config.get("num_attention_heads"))
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    if type(heads) is not int or type(hidden) is not int or heads < 1:
        raise _refused(prefix + "attention.head_count", heads, "one number for all layers")
    head_dim = config.setdefault("head_dim", given.get("rope.dimension_count", hidden // heads))
    for key in ("rope.dimension_count", "attention.value_length"):
        if given.get(key, head_dim) != head_dim:
            raise _refused(prefix + key, given[key], f"the head size {head_dim}")
    config["rope_theta"] = config.get("rope_theta", 10_000.0)
    scaling = given.get("rope.scaling.type", "none")
    if scaling == "linear":
        config["rope_scaling"] = {"rope_type": "linear", "factor": given.get("rope.scaling.factor")}
    if scaling == "yarn":
        named = {name: given[key] for key, name in _YARN.items() if key in given}
        config["rope_scaling"] = {"rope_type": "yarn", **named}
    if rope_factors is not None:
        if scaling != "none":
            raise _refused(prefix + "rope.scaling.type", scaling, f"none beside {ROPE_FACTORS}")
        config["rope_scaling"] = _llama3_scaling(rope_factors, config["rope_theta"], head_dim)
    return config | {
        "architectures": [_ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": vocab_size,
        "tie_word_embeddings": tied,
        "dtype": "float32",
        **_token_ids(metadata),
    }


def _token_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    def token(name: str) -> Any:
        return metadata.get(f"tokenizer.ggml.{name}_token_id")

    ends = [end for end in (token("eos"), token("eot")) if end is not None]
    return {"bos_token_id": token("bos"), "pad_token_id": token("padding"), "eos_token_id": sorted(set(ends))}


def _llama3_scaling(factors: NDArray[np.float32], base: float, head_dim: int) -> dict[str, Any]:
    """Recover the llama3 rule from its factors, and prove it by computing them again."""
    low, high, original, factor = 1.0, 4.0, 8192, float(factors.max(initial=1.0))
    wavelengths = [2 * math.pi * base ** (2 * i / head_dim) for i in range(head_dim // 2)]
    smooth = [min(1.0, max(0.0, (original / length - low) / (high - low))) for length in wavelengths]
    expected = np.array([1 / ((1 - part) / factor + part) for part in smooth], np.float32)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-4):
        raise _refused(ROPE_FACTORS, factors.tolist(), "the factors of the llama3 rule")
    return {
        "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }  # fmt: skip


def _refused(key: str, got: object, wanted: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{key} is {got!r:.80}, this runtime needs {wanted}",
        hint="a safetensors folder of the same model may work, if its architecture is supported",
        field=key,
        got=repr(got)[:80],
    )
