"""Checked reading of one `config.json`: types, bounds, refusal of options that would change the numbers."""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from ...cybergraph.errors import UnsupportedModel
from ...cybergraph.limits import MAX_LAYERS

ARCHITECTURES: Final = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "SmolLM3ForCausalLM": "smollm3",
    "GlmForCausalLM": "glm",
}
"""Supported architectures and their `model_type`."""

_MOST: Final = {
    "num_hidden_layers": MAX_LAYERS, "num_attention_heads": 1 << 12, "num_key_value_heads": 1 << 12,
    "head_dim": 1 << 12, "hidden_size": 1 << 20, "intermediate_size": 1 << 20, "vocab_size": 1 << 24,
}  # fmt: skip

# Options some decoder has, with the one value that leaves the numbers alone. Null and absence do too.
_NEUTRAL: Final[dict[str, object]] = {
    "hidden_act": "silu", "hidden_activation": "silu", "mlp_bias": False,
    "pretraining_tp": 1, "is_causal": True, "is_encoder_decoder": False,
    "add_cross_attention": False, "quantization_config": None, "auto_map": None, "logit_scale": 1.0,
    "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "attention_multiplier": None,
    "logits_scaling": 1.0, "layer_norm_eps": None, "norm_bias": False, "parallel_residual": False,
    "position_embedding_type": "rotary", "rope_interleaved": False,
}  # fmt: skip

# Keys read elsewhere or without effect on the numbers, though `_SUSPECT` would match them.
_KNOWN: Final = {
    "rms_norm_eps", "attention_bias", "partial_rotary_factor",
    "rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings",
    "no_rope_layers", "no_rope_layer_interval", "sliding_window", "use_sliding_window", "max_window_layers",
    "attention_dropout", "_attn_implementation", "_attn_implementation_autoset", "attn_implementation",
}  # fmt: skip

# Words in the names of options that other decoders compute with. transformers ignores a foreign option
# silently, but a model that carries one was made for code that does not.
_SUSPECT: Final = re.compile(
    r"softcap|multiplier|scal(e|ing|ar)|quant|expert|moe|vision|image|audio|video|alibi|clip|bidirectional|attention"
    r"|attn|lora|adapter|rope|rotary|window|chunk|qk|norm|bias|mup|nextn|mtp|sparse|conv|mamba|ssm"
)

_ABSENT: Final = object()


class Fields:
    """The fields of one config."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def get(self, field: str, default: object = None) -> Any:
        """Give a field as it stands."""
        return self.config.get(field, default)

    def refuse(self, field: str, wanted: str, got: object = _ABSENT) -> UnsupportedModel:
        """Build the error that names a field and its value."""
        value = self.get(field) if got is _ABSENT else got
        shown = value if value is None or isinstance(value, str | int | float) else repr(value)
        return UnsupportedModel(
            f"{field} is {shown!r:.80}, this runtime needs {wanted}",
            hint="it refuses what it would compute wrongly; `cyberkv model add` takes Llama, Mistral, Qwen2, "
            "Qwen3, SmolLM2, SmolLM3 and GLM decoders",
            field=field,
            got=shown,
        )

    def architecture(self) -> str:
        """Give the one architecture, checked against `model_type`."""
        names = self.get("architectures")
        if not isinstance(names, list) or len(names) != 1 or names[0] not in ARCHITECTURES:
            raise self.refuse("architectures", f"one of {', '.join(ARCHITECTURES)}")
        name: str = names[0]
        if self.get("model_type", ARCHITECTURES[name]) != ARCHITECTURES[name]:
            raise self.refuse("model_type", f"{ARCHITECTURES[name]!r} beside {name}")
        return name

    def refuse_other_numerics(self) -> None:
        """Refuse each option whose value changes the numbers in a way this runtime does not compute."""
        for field, value in self.config.items():
            if value is None or field in _KNOWN:
                continue
            if field in _NEUTRAL:
                if value != _NEUTRAL[field]:
                    raise self.refuse(field, f"{_NEUTRAL[field]!r} or nothing")
            elif value and field not in _MOST and _SUSPECT.search(field):
                raise self.refuse(field, "this option to be absent")

    def count(self, field: str, default: int | None = None) -> int:
        """Give an integer of at least 1, required unless there is a default."""
        value, most = self.get(field, default), _MOST.get(field, 1 << 31)
        if type(value) is not int or not 1 <= value <= most:
            raise self.refuse(field, f"an integer from 1 to {most}")
        return value

    def positive(self, field: str) -> float:
        """Give a required finite number over 0."""
        return self.as_positive(field, self.get(field))

    def as_positive(self, field: str, value: object) -> float:
        """Check that a value is a finite number over 0."""
        if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:  # type: ignore[arg-type, operator]
            raise self.refuse(field, "a finite number over 0", value)
        return float(value)  # type: ignore[arg-type]

    def flag(self, field: str, *, default: bool) -> bool:
        """Give a boolean."""
        value = self.get(field, default)
        if type(value) is not bool:
            raise self.refuse(field, "true or false")
        return value

    def attention_bias(self, architecture: str) -> bool:
        """Say whether q, k and v have a bias: an option of GLM alone."""
        field = "attention_bias"
        if architecture == "GlmForCausalLM":
            return self.flag(field, default=True)
        if self.get(field) not in (None, False):
            raise self.refuse(field, "False or nothing")
        return architecture == "Qwen2ForCausalLM"

    def kv_heads(self, architecture: str, num_heads: int) -> int:
        """Give the number of key-value heads, a divisor of the query heads."""
        field = "num_key_value_heads"
        # Only for Llama does an absent field mean "as many as query heads"; the others default to a number.
        if self.get(field, None if architecture == "LlamaForCausalLM" else _ABSENT) is None:
            return num_heads
        count = self.count(field)
        if num_heads % count:
            raise self.refuse(field, f"a divisor of num_attention_heads {num_heads}")
        return count

    def head_dim(self, architecture: str, num_heads: int) -> int:
        """Give the size of one head, even because rotation pairs its dimensions."""
        hidden_size = self.count("hidden_size")
        if self.get("head_dim") is not None:
            size = self.count("head_dim")
        elif architecture in ("Qwen3ForCausalLM", "GlmForCausalLM"):
            size = 128
        elif hidden_size % num_heads:
            raise self.refuse("hidden_size", f"a multiple of num_attention_heads {num_heads}")
        else:
            size = hidden_size // num_heads
        if size % 2:
            raise self.refuse("head_dim", "an even number", size)
        return size
