"""The forward pass of the Llama family, without a cache of its own.

One code path serves Llama, Mistral, Qwen2, Qwen3, SmolLM2 and SmolLM3; they differ in which tensors exist and in each
layer's kind. K leaves the decoder before rotation: the cache rotates at dispatch.
"""

from typing import Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from .config import DecoderConfig


class KvCache(Protocol):
    """Where K and V go and where attention happens."""

    def put(self, layer: int, start: int, k: Tensor, v: Tensor, rows: int) -> None:
        """Take raw K and V. Shapes: [>= rows, kv_heads, head_dim]."""

    def attend(self, layer: int, start: int, q: Tensor) -> Tensor:
        """Attend from raw queries. Shapes: [n, heads, head_dim] -> [n, heads * head_dim]."""


class Layer:
    """The tensors of one layer; biases and norms that the model lacks are None."""

    def __init__(self, weights: dict[str, Tensor], index: int) -> None:
        def tensor(name: str) -> Tensor:
            return weights[f"model.layers.{index}.{name}"]

        def maybe(name: str) -> Tensor | None:
            return weights.get(f"model.layers.{index}.{name}")

        self.attention_norm = tensor("input_layernorm.weight")
        self.q, self.q_bias = tensor("self_attn.q_proj.weight"), maybe("self_attn.q_proj.bias")
        self.k, self.k_bias = tensor("self_attn.k_proj.weight"), maybe("self_attn.k_proj.bias")
        self.v, self.v_bias = tensor("self_attn.v_proj.weight"), maybe("self_attn.v_proj.bias")
        self.o, self.o_bias = tensor("self_attn.o_proj.weight"), maybe("self_attn.o_proj.bias")
        self.q_norm, self.k_norm = maybe("self_attn.q_norm.weight"), maybe("self_attn.k_norm.weight")
        self.mlp_norm = tensor("post_attention_layernorm.weight")
        self.gate = tensor("mlp.gate_proj.weight")
        self.up = tensor("mlp.up_proj.weight")
        self.down = tensor("mlp.down_proj.weight")


class Decoder:
    """Weights and arithmetic. Stateless between calls."""

    def __init__(self, config: DecoderConfig, weights: dict[str, Tensor]) -> None:
        self.config = config
        self.embeddings = weights["model.embed_tokens.weight"]
        self.head = self.embeddings if config.tied_embeddings else weights["lm_head.weight"]
        self.final_norm = weights["model.norm.weight"]
        self.layers = [Layer(weights, index) for index in range(config.num_layers)]

    def truncated(self, num_layers: int) -> Self:
        """Share the first layers as a smaller decoder."""
        short = type(self).__new__(type(self))
        short.__dict__.update(self.__dict__)
        short.layers = self.layers[:num_layers]
        return short

    def forward(self, tokens: Tensor, start: int, rows: int, cache: KvCache) -> Tensor:
        """Run token rows that stand at `start` on; the first `rows` are real, the rest padding.

        Shapes: tokens [n] int64 -> hidden states before the final norm [n, hidden_size].
        """
        config = self.config
        hidden = self.embeddings[tokens]
        n = hidden.shape[0]
        for index, layer in enumerate(self.layers):
            x = self._norm(hidden, layer.attention_norm)
            q = F.linear(x, layer.q, layer.q_bias).view(n, config.num_heads, config.head_dim)
            k = F.linear(x, layer.k, layer.k_bias).view(n, config.num_kv_heads, config.head_dim)
            v = F.linear(x, layer.v, layer.v_bias).view(n, config.num_kv_heads, config.head_dim)
            if layer.q_norm is not None and layer.k_norm is not None:
                q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
            cache.put(index, start, k, v, rows)
            hidden = hidden + F.linear(cache.attend(index, start, q), layer.o, layer.o_bias)
            x = self._norm(hidden, layer.mlp_norm)
            hidden = hidden + F.linear(F.silu(F.linear(x, layer.gate)) * F.linear(x, layer.up), layer.down)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token after one row. Shapes: [hidden_size] -> [vocab_size] float32.

        Always one row at a time: the bytes then depend on the row alone, not on how it was computed.
        """
        return F.linear(self._norm(hidden[None], self.final_norm), self.head)[0].float()

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.config.norm_eps)
        return weight * wide.to(x.dtype)
