"""Conversations of any size without a model: rows are invented, everything around them is real."""

import os
from collections.abc import Iterator
from itertools import count, islice

from cyberkv.cybergraph.chain import build_root
from cyberkv.cybergraph.cid import Cid, HashName
from cyberkv.cybergraph.nodes import CANONICAL_RULE, EMPTY_TAIL, Block, Model, Rope
from cyberkv.cybergraph.store import Store

BLOCK_SIZE = 16
LAYERS, KV_HEADS, HEAD_DIM = 32, 8, 128
"""The shape of an 8B model in bf16: 64 KiB a layer and block, 2 MiB a block."""
LAYER_BYTES = 2 * BLOCK_SIZE * KV_HEADS * HEAD_DIM * 2
BLOCK_BYTES = LAYERS * LAYER_BYTES
_NOISE = os.urandom(LAYERS * LAYER_BYTES)


def model(leaf_bytes: int, leaf_hash: HashName) -> Model:
    """A model node whose leaves have `leaf_bytes`, a multiple of `LAYER_BYTES`."""
    return Model(
        weights="blake3:00", adapters=(), tokenizer="blake3:01", chat_template="blake3:02", architecture="llama",
        num_layers=LAYERS, hidden_size=4096, num_heads=32, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM,
        rope=Rope(base="500000.0", scaling=(), rotary_dims=HEAD_DIM, convention="half"), attention=("full",) * LAYERS,
        activation="silu", norm_eps="1e-05", qk_norm=False, scale="0.08838834764831845", logit_softcap=None,
        kv_dtype="bf16", kv_quant_scheme="none", block_size=BLOCK_SIZE, layers_per_leaf=leaf_bytes // LAYER_BYTES,
        position_anchor_mode="relative", leaf_hash=leaf_hash, rule=CANONICAL_RULE,
    )  # fmt: skip


def leaves(leaf_bytes: int) -> Iterator[bytes]:
    """Endless leaves, no two equal."""
    for number in count():
        yield number.to_bytes(8, "big") + _NOISE[8:leaf_bytes]


def record(store: Store, total_bytes: int, *, leaf_bytes: int, leaf_hash: HashName) -> Cid:
    """Store a conversation with `total_bytes` of leaves and give its root."""
    model_cid = store.put_node(model(leaf_bytes, leaf_hash))
    rows = leaves(leaf_bytes)
    chain: list[Cid] = []
    for at in range(total_bytes // BLOCK_BYTES):
        named = [(Cid.of(data, "raw", leaf_hash), data) for data in islice(rows, BLOCK_BYTES // leaf_bytes)]
        tokens = tuple(range(at * BLOCK_SIZE, (at + 1) * BLOCK_SIZE))
        node = Block(model_cid, chain[-1] if chain else None, tokens, tuple(cid for cid, _ in named)).encode()
        chain.append(Cid.of(node, "dag-cbor", "sha2-256"))
        store.put_many([*named, (chain[-1], node)], hashed=True)
    return build_root(
        store, model=model_cid, block_size=BLOCK_SIZE, blocks=chain, tail=EMPTY_TAIL, title="made up",
        payload_bytes=len(chain) * BLOCK_BYTES,
    )  # fmt: skip
