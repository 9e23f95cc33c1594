"""Small random models of every family: safetensors folders with a byte tokenizer and a chat template.

Weights are drawn so that nothing is degenerate: norms are not 1, biases are not 0, attention is peaked enough
that a wrong rotation, window or layer order shows in the logits.
"""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GlmConfig,
    GlmForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

SPECIAL_TOKENS = ("<|start|>", "<|end|>", "<|user|>", "<|assistant|>")
VOCAB_SIZE = 272
"""256 bytes, the special tokens, and some that no text gives."""

TEMPLATE = (
    "{% for m in messages %}<|{{ 'user' if m.role == 'system' else m.role }}|>{{ m.content }}<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5, "bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 257,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 256,
}  # fmt: skip
_LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
_YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 32}

FAMILIES: dict[str, tuple[type[PreTrainedModel], type[PretrainedConfig], dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": True}),
    "llama-untied": (LlamaForCausalLM, LlamaConfig, {"head_dim": 32, "num_key_value_heads": 4}),
    "llama-llama3": (LlamaForCausalLM, LlamaConfig, {"rope_parameters": _LLAMA3}),
    "llama-linear": (LlamaForCausalLM, LlamaConfig, {"rope_parameters": _LINEAR}),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": 8}),
    "mistral-wide": (MistralForCausalLM, MistralConfig, {"sliding_window": None, "head_dim": 32}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True}),
    "qwen2-window": (
        Qwen2ForCausalLM, Qwen2Config,
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 32}),
    "qwen3-yarn": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 32, "rope_parameters": _YARN}),
    "smollm3": (
        SmolLM3ForCausalLM, SmolLM3Config,
        {"num_hidden_layers": 4, "no_rope_layer_interval": 2, "tie_word_embeddings": True},
    ),
    "smollm3-window": (
        SmolLM3ForCausalLM, SmolLM3Config,
        {"no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 8},
    ),
    "glm": (GlmForCausalLM, GlmConfig, {"head_dim": 32}),
}  # fmt: skip


def tiny_model(family: str, folder: Path, *, seed: int = 0, **changes: Any) -> Path:
    """Write a model of a family with weights drawn from `seed`; `changes` go into its config."""
    model_class, config_class, options = FAMILIES[family]
    torch.manual_seed(seed)
    model = model_class(config_class(**{**_SHAPE, **options, **changes}))
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith("norm.weight"):
                tensor.normal_(1.0, 0.3)
            elif tensor.dim() == 1 or "embed_tokens" in name:
                tensor.normal_(0.0, 1.0)
            else:
                tensor.normal_(0.0, 1.5 * tensor.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of one token per byte, and a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: at for at, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": SPECIAL_TOKENS[0], "eos_token": SPECIAL_TOKENS[1], "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
