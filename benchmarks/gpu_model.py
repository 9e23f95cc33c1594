"""A decoder in the shape of an 8B model with random weights on the GPU, its pool, and steps over it.

No weights are on a machine that was borrowed for an hour, and none are needed: time depends on shapes, not on what was
learnt. Bits are compared, too, where they have to be the same.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from cyberkv.runtime.cuda.arithmetic import DeviceArithmetic, Kernels
from cyberkv.runtime.cuda.cache import Part
from cyberkv.runtime.cuda.devicepool import DevicePool
from cyberkv.runtime.cuda.workspace import Workspace
from cyberkv.runtime.geometry import Geometry, layers_per_leaf
from cyberkv.runtime.models.config import DecoderConfig
from cyberkv.runtime.models.decoder import Decoder

from .gpu import Bench
from .gpu_host import device_of

PAGE_SIZE = 16
CHUNK_TOKENS = 2048
"""Rows of one step of a prefill."""


def config_of(bench: Bench, positions: int) -> DecoderConfig:
    """Llama's 8B shape with tied embeddings; with `--quick` of fewer layers, in a dry run tiny."""
    shape: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "tie_word_embeddings": True, "max_position_embeddings": positions,
        "num_hidden_layers": bench.size(32, 4, 2), "hidden_size": bench.size(4096, 4096, 128),
        "intermediate_size": bench.size(14336, 14336, 128), "num_attention_heads": bench.size(32, 32, 2),
        "num_key_value_heads": bench.size(8, 8, 1), "head_dim": bench.size(128, 128, 64),
        "vocab_size": bench.size(128256, 128256, 64),
    }  # fmt: skip
    return DecoderConfig.from_hf(shape)


def weights_of(config: DecoderConfig, bench: Bench) -> dict[str, Tensor]:
    """Draw weights that keep rows at the size of 1."""
    hidden, inner = config.hidden_size, config.intermediate_size
    asking, known = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes = {"model.embed_tokens.weight": (config.vocab_size, hidden), "model.norm.weight": (hidden,)}
    for index in range(config.num_layers):
        layer = {
            "self_attn.q_proj": (asking, hidden), "self_attn.k_proj": (known, hidden),
            "self_attn.v_proj": (known, hidden), "self_attn.o_proj": (hidden, asking),
            "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
        }  # fmt: skip
        shapes |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    return {name: torch.ones(shape, dtype=bench.dtype, device=bench.device) if len(shape) == 1
            else bench.random(*shape, seed=seed) / shape[1] ** 0.5
            for seed, (name, shape) in enumerate(shapes.items())}  # fmt: skip


@dataclass
class Model:
    """A decoder over a pool of its own."""

    bench: Bench
    config: DecoderConfig
    decoder: Decoder
    pool: DevicePool
    turns: tuple[Tensor, Tensor]
    kernels: Kernels

    def workspace(self, *, captures: bool = True) -> Workspace:
        """Prepare steps, captured as a whole or launched kernel by kernel."""
        return Workspace(self.pool, self.config, self.kernels, self.turns, captures=captures)

    def rows(self, tokens: int) -> list[int]:
        """Take rows for a sequence."""
        return [self.pool.allocate() for _ in range(-(-tokens // PAGE_SIZE))]

    def prefill(self, workspace: Workspace, table: list[int], tokens: list[int]) -> Tensor:
        """Compute a prompt from its beginning and give the scores of the next token, on the device."""
        for start in range(0, len(tokens), CHUNK_TOKENS):
            part = Part(table, start, tuple(tokens[start : start + CHUNK_TOKENS]))
            hidden = workspace.run(self.decoder, [part])
        return self.decoder.logits(hidden[-1])

    def prefilling(self, tokens: list[int]) -> Callable[[], Tensor]:
        """Give a prefill over rows of its own."""
        workspace, table = self.workspace(), self.rows(len(tokens))
        return lambda: self.prefill(workspace, table, tokens)

    def next_scores(self, workspace: Workspace, table: list[int], tokens: list[int]) -> Tensor:
        """Compute the last row of a prompt whose K and V stand in the pool, and give the scores of the next token."""
        last = Part(table, len(tokens) - 1, (tokens[-1],))
        return self.decoder.logits(workspace.run(self.decoder, [last], writes=False)[-1])


@contextmanager
def random_model(
    bench: Bench, *, tokens: int, capacity_tokens: int, kernels: Kernels | None = None
) -> Iterator[Model]:  # fmt: skip
    """Make a model for sequences of `tokens`, over a pool that is zeros; by default over the kernels of the run."""
    kernels = kernels or cast("Kernels", bench.kernels)
    config = config_of(bench, tokens)
    shape = (config.num_layers, config.num_kv_heads, config.head_dim)
    leaf_layers = layers_per_leaf(*shape, block_size=PAGE_SIZE, dtype=bench.dtype_name)  # type: ignore[arg-type]
    geometry = Geometry(*shape, PAGE_SIZE, leaf_layers, bench.dtype_name)  # type: ignore[arg-type]
    device = device_of(bench)
    pool = DevicePool(device, geometry, -(-capacity_tokens // PAGE_SIZE))
    pool.bytes.zero_()
    speeds = config.rope_base ** (-torch.arange(config.head_dim // 2) / (config.head_dim // 2))
    angles = torch.arange(tokens)[:, None] * speeds[None, :]
    turns = angles.cos().to(bench.device), angles.sin().to(bench.device)
    try:
        decoder = Decoder(config, weights_of(config, bench), DeviceArithmetic(device, kernels))
        yield Model(bench, config, decoder, pool, turns, kernels)
    finally:
        pool.close()
