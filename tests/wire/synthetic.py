"""Small conversations with made-up rows: right in every count, size and link, and quick to make.

Rows are a function of (seed, position), so two conversations of one seed share their common prefix.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import replace

from cyberkv.cybergraph.chain import build_root, closure
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.nodes import CANONICAL_RULE, EMPTY_TAIL, Block, Model, Rope, Tail
from cyberkv.cybergraph.store import MemoryStore, Store

BLOCK_SIZE = 4
LAYERS, LAYERS_PER_LEAF, KV_HEADS, HEAD_DIM = 4, 3, 2, 8
"""Two leaves a block, of three layers and of one."""
ROW_BYTES = 2 * KV_HEADS * HEAD_DIM * 4

MODEL = Model(
    weights="blake3:00", adapters=(), tokenizer="blake3:01", chat_template="blake3:02", architecture="llama",
    num_layers=LAYERS, hidden_size=32, num_heads=4, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM,
    rope=Rope(base="10000.0", scaling=(), rotary_dims=HEAD_DIM, convention="half"), attention=("full",) * LAYERS,
    activation="silu", norm_eps="1e-05", qk_norm=False, scale="0.25", logit_softcap=None, kv_dtype="f32",
    kv_quant_scheme="none", block_size=BLOCK_SIZE, layers_per_leaf=LAYERS_PER_LEAF,
    position_anchor_mode="relative", leaf_hash="blake3", rule=CANONICAL_RULE,
)  # fmt: skip


def leaves(seed: str, tokens: int) -> list[bytes]:
    """One leaf per layer group."""
    sizes = [tokens * ROW_BYTES * layers for layers in (LAYERS_PER_LEAF, LAYERS - LAYERS_PER_LEAF)]
    return [hashlib.shake_128(f"{seed}/{group}".encode()).digest(size) for group, size in enumerate(sizes)]


def put_leaves(store: Store, seed: str, tokens: int) -> tuple[Cid, ...]:
    named = [(Cid.of(data, "raw", "blake3"), data) for data in leaves(seed, tokens)]
    store.put_many(named)
    return tuple(cid for cid, _ in named)


def record(
    store: Store,
    *,
    blocks: int = 5,
    tail_tokens: int = 2,
    seed: str = "a",
    model: Model = MODEL,
    parent: Cid | None = None,
    approx: str | None = None,
    payload_bytes: int | None = None,
    created: str = "",
) -> Cid:
    """Store a conversation and give its root."""
    cid = store.put_node(model)
    chain: list[Cid] = []
    for at in range(blocks):
        tokens = tuple(1000 + at * BLOCK_SIZE + i for i in range(BLOCK_SIZE))
        kv = put_leaves(store, f"{seed}/{at}", BLOCK_SIZE)
        chain.append(store.put_node(Block(cid, chain[-1] if chain else None, tokens, kv)))
    tail = EMPTY_TAIL
    if tail_tokens:
        kv = put_leaves(store, f"{seed}/tail/{blocks}", tail_tokens)
        tail = Tail(tuple(range(tail_tokens)), 0, "test", kv)
    exact = (blocks * BLOCK_SIZE + tail_tokens) * ROW_BYTES * LAYERS
    return build_root(
        store, model=cid, block_size=BLOCK_SIZE, blocks=chain, tail=tail, title=seed, parent=parent, approx=approx,
        payload_bytes=exact if payload_bytes is None else payload_bytes, created=created,
    )  # fmt: skip


def contents(store: Store, root: Cid) -> dict[Cid, bytes]:
    """The closure of a root, block by block, in the order of `closure`."""
    return {cid: store.get(cid) for cid in closure(store, root)}


def sum_bytes(store: Store, cids: Iterable[Cid]) -> int:
    return sum(len(store.get(cid)) for cid in cids)


def conversation(**options: object) -> tuple[MemoryStore, Cid]:
    """A store with one conversation in it."""
    store = MemoryStore()
    return store, record(store, **options)  # type: ignore[arg-type]


def other_model(**changes: object) -> Model:
    return replace(MODEL, **changes)  # type: ignore[arg-type]
