"""`cyberkv/model`: everything that decides the bytes of a model's KV cache, and nothing else.

Two runs may share blocks only if all of it agrees. dag-cbor here has no floats, so real numbers are their
shortest decimal text (`repr` of the double).
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ..cid import HashName
from ..limits import MAX_BLOCK_TOKENS, MAX_LAYERS
from .base import Nested, Node, Record
from .kinds import Bool, Listing, Maybe, Text, TextMap, Uint

CANONICAL_RULE = "panels256-rows16/2"
"""At least 16 rows through every linear layer; attention over panels of 256 keys merged in order."""


@dataclass(frozen=True, slots=True)
class Rope(Record):
    """Rotary embedding."""

    base: Annotated[str, Text(64)]
    scaling: Annotated[tuple[tuple[str, str], ...], TextMap()]
    """Parameters of the scaling rule with `rope_type`; empty for plain rotation."""
    rotary_dims: Annotated[int, Uint(1 << 16)]
    convention: Annotated[str, Text(choices=("half", "interleaved"))]
    """`half`: dimension i turns with i + rotary_dims/2. `interleaved`: with its neighbour."""


@dataclass(frozen=True, slots=True)
class Model(Node):
    """The identity of a model. Digests read `blake3:<hex>`."""

    weights: Annotated[str, Text(128)]
    adapters: Annotated[tuple[str, ...], Listing(Text(128), 64)]
    tokenizer: Annotated[str, Text(128)]
    chat_template: Annotated[str, Text(128)]
    architecture: Annotated[str, Text(64)]
    num_layers: Annotated[int, Uint(MAX_LAYERS, least=1)]
    hidden_size: Annotated[int, Uint(1 << 20, least=1)]
    num_heads: Annotated[int, Uint(1 << 12, least=1)]
    num_kv_heads: Annotated[int, Uint(1 << 12, least=1)]
    head_dim: Annotated[int, Uint(1 << 12, least=1)]
    rope: Annotated[Rope, Nested(Rope)]
    attention: Annotated[tuple[str, ...], Listing(Text(32), MAX_LAYERS, least=1)]
    """Per layer: `full`, or `window:N` (N keys including the row's own); then `-nope` for no rotation."""
    activation: Annotated[str, Text(32)]
    norm_eps: Annotated[str, Text(64)]
    qk_norm: Annotated[bool, Bool()]
    scale: Annotated[str, Text(64)]
    """Factor on the attention logits."""
    logit_softcap: Annotated[str | None, Maybe(Text(64))]
    kv_dtype: Annotated[str, Text(choices=("f32", "bf16", "f16"))]
    kv_quant_scheme: Annotated[str, Text(choices=("none", "int8/row/f32"))]
    """How leaves hold K and V, and so how exactly: `leafsize.RELATIVE_ERROR`."""
    block_size: Annotated[int, Uint(MAX_BLOCK_TOKENS, least=1)]
    layers_per_leaf: Annotated[int, Uint(MAX_LAYERS, least=1)]
    position_anchor_mode: Annotated[str, Text(choices=("relative",))]
    """`relative`: K is stored before rotation, so its bytes hold no position."""
    leaf_hash: Annotated[HashName, Text(choices=("blake3", "sha2-256"))]
    rule: Annotated[str, Text(64)]
    """Version of the canonical rule: `CANONICAL_RULE`."""

    TYPE: ClassVar = "cyberkv/model"
