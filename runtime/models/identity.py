"""From a model as loaded to the node that names it: every axis that decides the bytes of its KV cache."""

from ...cybergraph.cid import HashName
from ...cybergraph.nodes import CANONICAL_RULE, Model, Rope
from ..geometry import KvDtype, KvScheme, layers_per_leaf
from .config import DecoderConfig, LayerKind

ABSENT = "none"
"""Digest of a tokenizer or chat template that a model does not have."""


def identity(
    config: DecoderConfig,
    *,
    weights_digest: str,
    tokenizer_digest: str,
    template_digest: str,
    dtype: KvDtype,
    block_size: int,
    leaf_hash: HashName,
    scheme: KvScheme = "none",
    adapters: tuple[str, ...] = (),
) -> Model:
    """Build the identity of a model. Its CID is `identity(...).cid()`."""
    return Model(
        weights=weights_digest,
        adapters=adapters,
        tokenizer=tokenizer_digest,
        chat_template=template_digest,
        architecture=config.architecture,
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        rope=Rope(
            base=repr(config.rope_base),
            scaling=config.rope_scaling,
            rotary_dims=config.rotary_dims,
            convention="interleaved" if config.is_interleaved else "half",
        ),
        attention=tuple(map(_attention, config.layers)),
        activation="silu",
        norm_eps=repr(config.norm_eps),
        qk_norm=config.qk_norm,
        scale=repr(config.scale),
        logit_softcap=None,
        kv_dtype=dtype,
        kv_quant_scheme=scheme,
        block_size=block_size,
        layers_per_leaf=layers_per_leaf(
            config.num_layers, config.num_kv_heads, config.head_dim, block_size=block_size, dtype=dtype, scheme=scheme
        ),
        position_anchor_mode="relative",
        leaf_hash=leaf_hash,
        rule=CANONICAL_RULE,
    )


def _attention(layer: LayerKind) -> str:
    keys = "full" if layer.window is None else f"window:{layer.window}"
    return keys if layer.rotated else f"{keys}-nope"
