"""The forward pass of the Llama family, without a cache of its own.

One code path serves Llama, Mistral, Qwen2, Qwen3, SmolLM2, SmolLM3 and GLM; they differ in which tensors exist and in
each layer's kind. K leaves the decoder before rotation: the cache rotates at dispatch.
"""

from dataclasses import replace
from typing import Protocol, Self

import torch
from torch import Tensor

from .arithmetic import HOST, Arithmetic
from .config import DecoderConfig


class KvCache(Protocol):
    """Where K and V go and where rotation and attention happen."""

    def attend(self, layer: int, start: int, qk: Tensor, v: Tensor, rows: int) -> Tensor:
        """Take raw K and V of the first `rows` rows, then attend from all rows.

        Shapes: qk [n, heads + kv_heads, head_dim], v [n, kv_heads, head_dim] -> [n, heads * head_dim].
        """


class Layer:
    """The tensors of one layer; biases and norms that the model lacks are None."""

    def __init__(self, config: DecoderConfig, weights: dict[str, Tensor], index: int, arithmetic: Arithmetic) -> None:
        """Take the tensors of layer `index` out of `weights`. Raises `TierFull`."""
        place, matrix = arithmetic.tensor, arithmetic.matrix

        def tensor(name: str) -> Tensor:
            return weights.pop(f"model.layers.{index}.{name}")

        def maybe(name: str) -> Tensor | None:
            return weights.pop(f"model.layers.{index}.{name}", None)

        # Matrices that take the same rows stand in one tensor: one product reads the rows once.
        self.attention_norm = place(tensor("input_layernorm.weight"))
        self.qkv = matrix(torch.cat([tensor(f"self_attn.{name}_proj.weight") for name in "qkv"]))
        biases = [bias for name in "qkv" if (bias := maybe(f"self_attn.{name}_proj.bias")) is not None]
        self.qkv_bias = place(torch.cat(biases)) if biases else None
        self.o, o_bias = matrix(tensor("self_attn.o_proj.weight")), maybe("self_attn.o_proj.bias")
        self.o_bias = None if o_bias is None else place(o_bias)
        self.qk_norm = None
        if (q_norm := maybe("self_attn.q_norm.weight")) is not None:
            heads, kv_heads = config.num_heads, config.num_kv_heads
            k_norm = tensor("self_attn.k_norm.weight")
            self.qk_norm = place(torch.cat([q_norm.expand(heads, -1), k_norm.expand(kv_heads, -1)]))
        self.mlp_norm = place(tensor("post_attention_layernorm.weight"))
        halves = ["gate_up"] if config.is_gate_up_fused else ["gate", "up"]
        self.gate_up = matrix(torch.cat([tensor(f"mlp.{name}_proj.weight") for name in halves]))
        self.down = matrix(tensor("mlp.down_proj.weight"))


class Decoder:
    """Weights and arithmetic. Stateless between calls."""

    def __init__(self, config: DecoderConfig, weights: dict[str, Tensor], arithmetic: Arithmetic = HOST) -> None:
        """Take all tensors out of `weights`, one by one: a matrix goes as soon as it stands in its own layout.

        Raises `TierFull` where there is no room for them.
        """
        self.config, self._arithmetic = config, arithmetic
        self.embeddings = arithmetic.tensor(weights.pop("model.embed_tokens.weight"))
        self.head = arithmetic.matrix(self.embeddings if config.tied_embeddings else weights.pop("lm_head.weight"))
        self.final_norm = arithmetic.tensor(weights.pop("model.norm.weight"))
        self.layers = [Layer(config, weights, index, arithmetic) for index in range(config.num_layers)]

    def truncated(self, num_layers: int) -> Self:
        """Share the first layers as a smaller decoder."""
        short = type(self).__new__(type(self))
        short.__dict__.update(self.__dict__)
        short.layers = self.layers[:num_layers]
        short.config = replace(self.config, num_layers=len(short.layers), layers=self.config.layers[:num_layers])
        return short

    def forward(self, tokens: Tensor, start: int, rows: int, cache: KvCache) -> Tensor:
        """Run token rows that stand at `start` on; the first `rows` are real, the rest padding.

        Shapes: tokens [n] integers, where the weights are -> hidden states before the final norm [n, hidden_size].
        """
        config = self.config
        hidden = self.embeddings[tokens]
        n = hidden.shape[0]
        for index, layer in enumerate(self.layers):
            x = self._norm(hidden, layer.attention_norm)
            qkv = layer.qkv(x, layer.qkv_bias).view(n, -1, config.head_dim)
            qk, v = qkv[:, : -config.num_kv_heads], qkv[:, -config.num_kv_heads :]
            if layer.qk_norm is not None:
                qk = self._norm(qk, layer.qk_norm)
            hidden = hidden + layer.o(cache.attend(index, start, qk, v, rows), layer.o_bias)
            x = self._norm(hidden, layer.mlp_norm)
            hidden = hidden + layer.down(self._arithmetic.silu_mul(layer.gate_up(x)))
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token after one row. Shapes: [hidden_size] -> [vocab_size] float32.

        Always one row at a time: the bytes then depend on the row alone, not on how it was computed.
        """
        return self.logits_of(hidden[None])[0]

    def logits_of(self, hidden: Tensor) -> Tensor:
        """Scores after each of several rows, with one pass over the output matrix instead of one for each row.

        Shapes: [n, hidden_size] -> [n, vocab_size] float32. The bytes are those of `logits` where the known-answer test
        found so (`Domain.scores_together`).
        """
        return self.head(self._norm(hidden, self.final_norm)).float()

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return self._arithmetic.rms_norm(x, weight, self.config.norm_eps)
