"""GGUF files made from small models, the way llama.cpp's converter makes them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file
from tokenizers import pre_tokenizers

from tests.numerics.tiny import SPECIAL_TOKENS

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
Change = Callable[[gguf.GGUFWriter, dict[str, Any]], None]
"""Changes the metadata and the tensors before they are written."""


def llama_factors(scaling: dict[str, float], base: float, head_dim: int) -> np.ndarray[Any, Any]:
    """Frequency divisors of the llama3 rule, written from its definition."""
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * np.pi * base ** (i / head_dim)
        ratio = scaling["original_max_position_embeddings"] / wavelength
        smooth = np.clip(
            (ratio - scaling["low_freq_factor"]) / (scaling["high_freq_factor"] - scaling["low_freq_factor"]),
            0,
            1,
        )
        factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors, np.float32)


def write_gguf(source: Path, path: Path, kind: str, *, quantised: bool = False, change: Change | None = None) -> Path:
    """Write a safetensors folder as a GGUF file the way llama.cpp's converter does."""
    config = json.loads((source / "config.json").read_text())
    rope = config["rope_parameters"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer = gguf.GGUFWriter(path, kind)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_vocab_size(config["vocab_size"])
    tensors: dict[str, Any] = dict(load_file(source / "model.safetensors"))
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "beta_fast" in rope:
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if rope["rope_type"] == "llama3":
        tensors["rope_freqs.weight"] = llama_factors(rope, rope["rope_theta"], head_dim)
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, kind.upper()), config["num_hidden_layers"])
    add_byte_tokenizer(writer)
    if change is not None:
        change(writer, tensors)
    for name, tensor in tensors.items():
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}.get(
            name.split(".")[-2] if "." in name else ""
        )
        if heads and kind in ("llama", "smollm3"):
            tensor = tensor.reshape(heads, 2, -1, tensor.shape[-1]).swapaxes(1, 2).reshape(tensor.shape)
        stored = names.get_name(name, try_suffixes=(".weight", ".bias")) or name
        if quantised and tensor.ndim == 2:
            kind_of_tensor = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(stored, gguf.quantize(tensor, kind_of_tensor), raw_dtype=kind_of_tensor)
        else:
            writer.add_tensor(stored, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


MERGES = ["Ġ t", "h e", "Ġt he", "Ġ Ġ", "1 2", "12 3", "123 4"]
WORDS = [
    *sorted(pre_tokenizers.ByteLevel.alphabet()),
    *SPECIAL_TOKENS,
    *(merge.replace(" ", "") for merge in MERGES),
]


def add_byte_tokenizer(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(WORDS)
    writer.add_token_types([3 if word in SPECIAL_TOKENS else 1 for word in WORDS])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_pad_token_id(257)
    writer.add_chat_template(TEMPLATE)
