"""`cyberkv/model`: everything that decides the bytes of a model's KV cache, and nothing else.

Two runs may share blocks only if all of it agrees. dag-cbor here has no floats, so real numbers are their shortest
decimal text (`repr` of the double).
"""

from dataclasses import dataclass
from typing import ClassVar

from ..limits import MAX_BLOCK_TOKENS, MAX_LAYERS
from .base import Nested, Node, Record
from .kinds import Bool, Kind, Listing, Maybe, Text, TextMap, Uint

CANONICAL_RULE = "panels256-rows16/1"
"""At least 16 rows through every linear layer; attention over panels of 256 keys merged in ascending order."""


@dataclass(frozen=True, slots=True)
class Rope(Record):
    """Rotary embedding."""

    base: str
    scaling: tuple[tuple[str, str], ...]
    """Parameters of the scaling rule with `rope_type`; empty for plain rotation."""
    rotary_dims: int
    convention: str
    """`half`: dimension i turns with i + rotary_dims/2. `interleaved`: with its neighbour."""

    KINDS: ClassVar[dict[str, Kind]] = {
        "base": Text(64),
        "scaling": TextMap(),
        "rotary_dims": Uint(1 << 16),
        "convention": Text(choices=("half", "interleaved")),
    }


@dataclass(frozen=True, slots=True)
class Model(Node):
    """The identity of a model. Digests read `blake3:<hex>`."""

    weights: str
    adapters: tuple[str, ...]
    tokenizer: str
    chat_template: str
    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: Rope
    attention: tuple[str, ...]
    """Per layer: `full`, `window:N` (N keys including the row's own), `full-nope`, `window:N-nope` (no rotation)."""
    activation: str
    norm_eps: str
    qk_norm: bool
    scale: str
    """Factor on the attention logits."""
    logit_softcap: str | None
    kv_dtype: str
    kv_quant_scheme: str
    block_size: int
    layers_per_leaf: int
    position_anchor_mode: str
    """`relative`: K is stored before rotation, so its bytes hold no position."""
    leaf_hash: str
    rule: str
    """Version of the canonical rule: `CANONICAL_RULE`."""

    TYPE: ClassVar = "cyberkv/model"
    KINDS: ClassVar[dict[str, Kind]] = {
        "weights": Text(128),
        "adapters": Listing(Text(128), 64),
        "tokenizer": Text(128),
        "chat_template": Text(128),
        "architecture": Text(64),
        "num_layers": Uint(MAX_LAYERS),
        "hidden_size": Uint(1 << 20),
        "num_heads": Uint(1 << 12),
        "num_kv_heads": Uint(1 << 12),
        "head_dim": Uint(1 << 12),
        "rope": Nested(Rope),
        "attention": Listing(Text(32), MAX_LAYERS, least=1),
        "activation": Text(32),
        "norm_eps": Text(64),
        "qk_norm": Bool(),
        "scale": Text(64),
        "logit_softcap": Maybe(Text(64)),
        "kv_dtype": Text(choices=("f32", "bf16", "f16")),
        "kv_quant_scheme": Text(choices=("none",)),
        "block_size": Uint(MAX_BLOCK_TOKENS),
        "layers_per_leaf": Uint(MAX_LAYERS),
        "position_anchor_mode": Text(choices=("relative",)),
        "leaf_hash": Text(choices=("blake3", "sha2-256")),
        "rule": Text(64),
    }
