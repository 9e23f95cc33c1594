"""Reading `config.json`: equal to what transformers makes of it, and refusal by name of everything else."""

import json
from typing import Any

import pytest

from cyberkv.cybergraph.errors import UnsupportedModel
from cyberkv.runtime.models.config import DecoderConfig, LayerKind
from tests.numerics.tiny import FAMILIES, tiny_model


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """`config.json` of each family as transformers writes it."""
    folder = tmp_path_factory.mktemp("configs")
    return {
        family: json.loads((tiny_model(family, folder / family) / "config.json").read_text()) for family in FAMILIES
    }


BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 272,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 2048, "rope_theta": 10_000.0,
}  # fmt: skip
QWEN2 = BASE | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
SMOLLM3 = BASE | {"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3"}
GLM = BASE | {"architectures": ["GlmForCausalLM"], "model_type": "glm"}
MISTRAL = BASE | {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
LLAMA3 = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}


@pytest.mark.parametrize("family", FAMILIES)
def test_shape_is_what_transformers_reads(family: str, configs: dict[str, dict[str, Any]]) -> None:
    _, config_class, _ = FAMILIES[family]
    ours, theirs = DecoderConfig.from_hf(configs[family]), config_class(**configs[family])
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    assert (ours.num_layers, ours.hidden_size, ours.num_heads, ours.num_kv_heads, ours.head_dim) == (
        theirs.num_hidden_layers, theirs.hidden_size, theirs.num_attention_heads, theirs.num_key_value_heads,
        head_dim,
    )  # fmt: skip
    assert (ours.norm_eps, ours.vocab_size, ours.max_positions) == (
        theirs.rms_norm_eps, theirs.vocab_size, theirs.max_position_embeddings,
    )  # fmt: skip
    assert ours.tied_embeddings == theirs.tie_word_embeddings
    assert ours.rope_base == theirs.rope_parameters["rope_theta"]
    given = theirs.rope_parameters
    assert ours.rotary_dims == head_dim * given.get("partial_rotary_factor", 1.0)
    scaled = {name: value for name, value in given.items() if name not in ("rope_theta", "partial_rotary_factor")}
    if scaled == {"rope_type": "default"}:
        assert ours.rope_scaling == ()
    else:
        defaults = {"beta_fast": 32, "beta_slow": 1, "truncate": True} if scaled["rope_type"] == "yarn" else {}
        words = {"true": 1, "false": 0}
        read = {name: words.get(text, text) for name, text in ours.rope_scaling}
        assert read.pop("rope_type") == scaled.pop("rope_type")
        assert {name: float(value) for name, value in read.items()} == defaults | scaled


def test_layer_kinds_of_each_family(configs: dict[str, dict[str, Any]]) -> None:
    plain, window = LayerKind(), LayerKind(window=8)
    kinds = {family: DecoderConfig.from_hf(config).layers for family, config in configs.items()}
    assert kinds["llama"] == kinds["qwen2"] == kinds["qwen3"] == kinds["mistral-wide"] == (plain,) * 3
    assert kinds["mistral"] == (window,) * 3
    assert kinds["qwen2-window"] == (plain, window, window)
    assert kinds["smollm3"] == (plain, LayerKind(rotated=False), plain, LayerKind(rotated=False))
    assert kinds["smollm3-window"] == (plain, LayerKind(window=8, rotated=False), plain)


def test_old_and_new_rope_layouts_read_alike() -> None:
    old = BASE | {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 256}}
    new = {**BASE, "rope_parameters": {**old["rope_scaling"], "rope_theta": 10_000.0}}
    del new["rope_theta"]
    assert DecoderConfig.from_hf(old) == DecoderConfig.from_hf(new)
    older = BASE | {"rope_scaling": {"type": "linear", "factor": 2}}
    assert DecoderConfig.from_hf(older).rope_scaling == (("factor", "2.0"), ("rope_type", "linear"))
    assert DecoderConfig.from_hf(older) != DecoderConfig.from_hf(BASE)


def test_llama3_original_length_comes_from_where_transformers_takes_it() -> None:
    _, config_class, _ = FAMILIES["llama"]
    length = "original_max_position_embeddings"
    cases = [
        BASE | {"rope_scaling": LLAMA3},
        BASE | {"rope_scaling": LLAMA3 | {length: 256}},
        BASE | {"rope_scaling": LLAMA3, length: 512},
        BASE | {"rope_scaling": LLAMA3 | {length: 256}, length: 512},
    ]
    for case, expected in zip(cases, (2048, 256, 512, 512), strict=True):
        theirs = config_class(**json.loads(json.dumps(case)))
        theirs.standardize_rope_params()  # as its rotary module does before it computes
        assert theirs.rope_parameters[length] == expected
        assert float(dict(DecoderConfig.from_hf(case).rope_scaling)[length]) == expected


@pytest.mark.parametrize("config", [BASE, QWEN2, SMOLLM3, MISTRAL, GLM])
def test_absent_fields_mean_what_they_mean_to_transformers(config: dict[str, Any]) -> None:
    classes = {config_class.model_type: config_class for _, config_class, _ in FAMILIES.values()}
    absent = {key: value for key, value in config.items() if key != "rope_theta"}
    ours, theirs = DecoderConfig.from_hf(absent), classes[config["model_type"]](**absent)
    assert ours.rope_base == theirs.rope_parameters["rope_theta"]
    assert ours.tied_embeddings == theirs.tie_word_embeddings
    biased = theirs.model_type == "qwen2" or getattr(theirs, "attention_bias", False)
    assert (ours.head_dim, ours.attention_bias) == (getattr(theirs, "head_dim", None) or 16, biased)
    window = getattr(theirs, "sliding_window", None) if theirs.model_type == "mistral" else None
    assert {kind.window for kind in ours.layers} == {window}


NEUTRAL = {
    "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "pretraining_tp": 1, "head_dim": 16,
    "rope_scaling": None, "quantization_config": None, "use_cache": True, "torch_dtype": "bfloat16",
    "attention_dropout": 0.1, "partial_rotary_factor": 1.0, "final_logit_softcapping": None,
    "_attn_implementation": "sdpa", "transformers_version": "4.40.0", "initializer_range": 0.02,
    "use_mrope": False, "layer_types": None,
}  # fmt: skip


def test_options_without_effect_are_accepted() -> None:
    assert DecoderConfig.from_hf(BASE | NEUTRAL) == DecoderConfig.from_hf(BASE)


REFUSED: list[tuple[dict[str, Any], str, object]] = [
    (BASE, "architectures", ["GemmaForCausalLM"]),
    (BASE, "architectures", ["MixtralForCausalLM"]),
    (BASE, "architectures", ["LlavaForConditionalGeneration"]),
    (BASE, "architectures", []),
    (BASE, "architectures", None),
    (BASE, "architectures", "LlamaForCausalLM"),
    (BASE, "model_type", "llama4"),
    (BASE, "hidden_act", "gelu"),
    (BASE, "attention_bias", True),
    (BASE, "mlp_bias", True),
    (BASE, "pretraining_tp", 2),
    (BASE, "quantization_config", {"quant_method": "gptq"}),
    (BASE, "partial_rotary_factor", 0.5),
    (BASE, "attention_multiplier", 0.0078125),
    (BASE, "attn_logit_softcapping", 50.0),
    (BASE, "final_logit_softcapping", 30.0),
    (BASE, "logit_scale", 0.0625),
    (BASE, "embedding_multiplier", 12.0),
    (BASE, "num_local_experts", 8),
    (BASE, "vision_config", {"hidden_size": 8}),
    (BASE, "image_token_id", 32_000),
    (BASE, "auto_map", {"AutoModel": "x.Y"}),
    (BASE, "is_causal", False),
    (BASE, "query_pre_attn_scalar", 256),
    (BASE, "head_dim", 15),
    (BASE, "head_dim", -16),
    (BASE, "hidden_size", 66),
    (BASE, "num_key_value_heads", 3),
    (BASE, "num_hidden_layers", 100_000),
    (BASE, "num_hidden_layers", 3.0),
    (BASE, "num_hidden_layers", True),
    (BASE, "vocab_size", None),
    (BASE, "rms_norm_eps", float("nan")),
    (BASE, "rms_norm_eps", None),
    (BASE, "rope_theta", 0),
    (BASE, "rope_theta", "10000"),
    (BASE, "tie_word_embeddings", "yes"),
    (BASE, "sliding_window", 8),
    (BASE, "layer_types", ["full_attention", "full_attention", "sliding_attention"]),
    (GLM, "attention_bias", None),
    (GLM, "attention_bias", 1),
    (GLM, "partial_rotary_factor", 2.0),
    (GLM, "sliding_window", 8),
    (MISTRAL, "sliding_window", 0),
    (MISTRAL, "layer_types", ["full_attention"] * 3),
    (QWEN2, "layer_types", ["sliding_attention"] * 3),
    (QWEN2, "layer_types", ["full_attention"] * 2),
    (QWEN2, "layer_types", ["chunked_attention"] * 3),
    (SMOLLM3, "no_rope_layers", [1, 1]),
    (SMOLLM3, "no_rope_layers", [1, 2, 1]),
    (SMOLLM3, "no_rope_layer_interval", 0),
]


@pytest.mark.parametrize(("config", "field", "value"), REFUSED)
def test_refused_by_name(config: dict[str, Any], field: str, value: object) -> None:
    DecoderConfig.from_hf(config)
    with pytest.raises(UnsupportedModel) as caught:
        DecoderConfig.from_hf(config | {field: value})
    error = caught.value
    named = "num_attention_heads" if (field, value) == ("hidden_size", 66) else field
    assert error.data["field"] == field
    assert named in error.message
    assert error.hint


@pytest.mark.parametrize(
    ("scaling", "field"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "rope_type"),
        ({"type": "yarn"}, "rope_parameters.factor"),
        ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}, "rope_type"),
        ({"type": "mrope", "mrope_section": [16, 24, 24]}, "rope_type"),
        ({"rope_type": "default", "mrope_section": [16, 24, 24]}, "rope_parameters.mrope_section"),
        ({"rope_type": "linear", "type": "dynamic", "factor": 2.0}, "rope_type"),
        ({"rope_type": "linear"}, "rope_parameters.factor"),
        ({"rope_type": "linear", "factor": float("inf")}, "rope_parameters.factor"),
        ({"rope_type": "linear", "factor": 2.0, "attention_factor": 1.1}, "rope_parameters.attention_factor"),
        ({"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (LLAMA3 | {"high_freq_factor": 1.0}, "rope_parameters.high_freq_factor"),
        ({"rope_type": ["llama3"]}, "rope_type"),
        ("linear", "rope_scaling"),
    ],
)
def test_rope_rules_that_are_not_computed_are_refused(scaling: object, field: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        DecoderConfig.from_hf(BASE | {"rope_scaling": scaling})
    assert caught.value.data["field"] == field


def test_an_absent_number_of_kv_heads_is_guessed_for_llama_only() -> None:
    absent = {key: value for key, value in BASE.items() if key != "num_key_value_heads"}
    assert DecoderConfig.from_hf(absent).num_kv_heads == BASE["num_attention_heads"]
    for config in (MISTRAL, QWEN2, SMOLLM3, GLM):
        with pytest.raises(UnsupportedModel, match="num_key_value_heads"):
            DecoderConfig.from_hf(absent | {name: config[name] for name in ("architectures", "model_type")})


def test_contradicting_rope_layouts_are_refused() -> None:
    scaling = {"rope_type": "linear", "factor": 2.0}
    DecoderConfig.from_hf(BASE | {"rope_scaling": scaling, "rope_parameters": scaling})
    with pytest.raises(UnsupportedModel) as caught:
        DecoderConfig.from_hf(BASE | {"rope_scaling": scaling, "rope_parameters": scaling | {"factor": 4.0}})
    assert caught.value.data["field"] == "rope_scaling"


def test_the_config_of_a_released_model() -> None:
    scaling = {
        "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3",
    }  # fmt: skip
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048,
        "num_hidden_layers": 16, "intermediate_size": 8192, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128_256, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131_072,
        "rope_theta": 500_000.0, "rope_scaling": scaling, "attention_bias": False, "bos_token_id": 128_000,
        "eos_token_id": [128_001, 128_008, 128_009], "hidden_act": "silu", "mlp_bias": False,
        "pretraining_tp": 1, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
        "attention_dropout": 0.0, "initializer_range": 0.02,
    }  # fmt: skip
    read = DecoderConfig.from_hf(config)
    assert (read.rope_base, read.head_dim, read.tied_embeddings) == (500_000.0, 64, True)
    assert dict(read.rope_scaling)["original_max_position_embeddings"] == "8192.0"


def test_the_configs_of_released_glm_models() -> None:
    chat = {
        "architectures": ["GlmForCausalLM"], "model_type": "glm", "attention_bias": True, "attention_dropout": 0.0,
        "eos_token_id": [151_329, 151_336, 151_338], "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.02, "intermediate_size": 13_696, "max_position_embeddings": 131_072,
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2, "pad_token_id": 151_329,
        "partial_rotary_factor": 0.5, "rms_norm_eps": 1.5625e-07, "rope_theta": 10_000.0,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 151_552,
    }  # fmt: skip
    read = DecoderConfig.from_hf(chat)
    assert (read.rotary_dims, read.is_interleaved, read.attention_bias, read.is_gate_up_fused) == (64, True, True, True)
    edge = DecoderConfig.from_hf(chat | {"partial_rotary_factor": 1.0, "attention_bias": False})
    assert (edge.rotary_dims, edge.is_interleaved, edge.attention_bias) == (128, True, False)
