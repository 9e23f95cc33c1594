"""What the decoder needs to know about a model, read from a Hugging Face `config.json`.

The rule is to refuse what would be computed wrongly: an architecture, an option or a rope rule that this
runtime does not implement is an `UnsupportedModel` that names the field and its value, never a guess.

>>> config = DecoderConfig.from_hf({
...     "architectures": ["MistralForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
...     "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
...     "rms_norm_eps": 1e-05, "max_position_embeddings": 512, "rope_theta": 10000.0, "sliding_window": 8})
>>> config.head_dim, config.layers[0], config.attention_bias
(16, LayerKind(window=8, rotated=True), False)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from .config_fields import Fields
from .config_layers import LayerKind, layer_kinds
from .config_rope import rope

__all__ = ["DecoderConfig", "LayerKind"]


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Shape and constants of a decoder of the Llama family."""

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    norm_eps: float
    rope_base: float
    rope_scaling: tuple[tuple[str, str], ...]
    """Empty for plain rotation, else `rope_type` and its parameters; numbers are the `repr` of a float."""
    rotary_dims: int
    """Numbers of a row that turn with its position; the rest stays."""
    layers: tuple[LayerKind, ...]
    attention_bias: bool
    """Whether the q, k and v projections add a bias; no other linear layer does."""
    qk_norm: bool
    tied_embeddings: bool
    max_positions: int
    """`max_position_embeddings`, or what a `yarn` rule is made for, where that is more."""

    @property
    def scale(self) -> float:
        """Factor on the attention logits."""
        return float(self.head_dim**-0.5)

    @property
    def is_interleaved(self) -> bool:
        """Whether a number turns with its neighbour, not with the one that stands `rotary_dims / 2` after it."""
        return self.architecture == "GlmForCausalLM"

    @property
    def is_gate_up_fused(self) -> bool:
        """Whether the weights hold the gate and up projections as one matrix."""
        return self.architecture == "GlmForCausalLM"

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Read the parsed `config.json` of a model.

        Knows the layout of transformers 5 (`rope_parameters`) and the older one (`rope_theta` and
        `rope_scaling`). Raises `UnsupportedModel` naming `field` and `got`.
        """
        fields = Fields(config)
        architecture = fields.architecture()
        fields.refuse_other_numerics()
        num_layers = fields.count("num_hidden_layers")
        num_heads = fields.count("num_attention_heads")
        head_dim = fields.head_dim(architecture, num_heads)
        rotation = rope(fields, architecture, head_dim)
        return cls(
            architecture=architecture,
            num_layers=num_layers,
            hidden_size=fields.count("hidden_size"),
            intermediate_size=fields.count("intermediate_size"),
            num_heads=num_heads,
            num_kv_heads=fields.kv_heads(architecture, num_heads),
            head_dim=head_dim,
            vocab_size=fields.count("vocab_size"),
            norm_eps=fields.positive("rms_norm_eps"),
            rope_base=rotation.base,
            rope_scaling=rotation.scaling,
            rotary_dims=rotation.rotary_dims,
            layers=layer_kinds(fields, architecture, num_layers),
            attention_bias=fields.attention_bias(architecture),
            qk_norm=architecture == "Qwen3ForCausalLM",
            tied_embeddings=fields.flag("tie_word_embeddings", default=architecture == "SmolLM3ForCausalLM"),
            max_positions=rotation.positions,
        )
