"""Small conversations made of real nodes over invented bytes."""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import pairwise

from cyberkv.cybergraph import chain
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import IndexEntry
from cyberkv.cybergraph.nodes import CANONICAL_RULE, EMPTY_TAIL, Block, Model, Rope, Tail
from cyberkv.cybergraph.prefix import prefix_keys
from cyberkv.cybergraph.store import Store

BLOCK_SIZE = 4
LEAF_BYTES_PER_TOKEN = 2 * 2 * 8 * 4
"""K and V, two layers a leaf, eight numbers of four bytes: what `make_model` says."""


def make_model(weights: str = "a", block_size: int = BLOCK_SIZE) -> Model:
    return Model(
        weights=f"blake3:{weights}", adapters=(), tokenizer="blake3:b", chat_template="blake3:c",
        architecture="llama", num_layers=4, hidden_size=16, num_heads=2, num_kv_heads=1, head_dim=8,
        rope=Rope(base="10000.0", scaling=(), rotary_dims=8, convention="half"), attention=("full",) * 4,
        activation="silu", norm_eps="1e-05", qk_norm=False, scale="0.3535533905932738", logit_softcap=None,
        kv_dtype="f32", kv_quant_scheme="none", block_size=block_size, layers_per_leaf=2,
        position_anchor_mode="relative", leaf_hash="blake3", rule=CANONICAL_RULE,
    )  # fmt: skip


def leaf(data: bytes) -> tuple[Cid, bytes]:
    return Cid.of(data, "raw", "blake3"), data


def rows_leaf(text: str, tokens: int) -> tuple[Cid, bytes]:
    """A leaf of as many bytes as rows of `tokens` tokens have, that says what it stands for. As numbers, all finite."""
    data = text.encode()
    stretched = data * (LEAF_BYTES_PER_TOKEN * tokens // len(data) + 1)
    return leaf(hashlib.sha256(data).hexdigest()[:32].encode() + stretched[32 : LEAF_BYTES_PER_TOKEN * tokens])


def blocks(count: int, size_bytes: int = 5000) -> list[tuple[Cid, bytes]]:
    made = [number.to_bytes(4, "big") * (size_bytes // 4) for number in range(1, count + 1)]
    return [(Cid.of(data, "raw", "blake3"), data) for data in made]


def make_blocks(
    store: Store,
    model: Cid,
    tokens: Sequence[int],
    *,
    block_size: int = BLOCK_SIZE,
    leaves: int = 2,
    flavour: str = "",
    before: Cid | None = None,
) -> list[Cid]:
    """Store the full blocks of a token sequence; leaves say what they stand for and differ by `flavour`."""
    prev, cids, pending = before, [], []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        window = tuple(tokens[start : start + block_size])
        rows = [rows_leaf(f"{flavour} {group} {prev} {window}", block_size) for group in range(leaves)]
        node = Block(model=model, prev=prev, tokens=window, kv=tuple(cid for cid, _ in rows))
        data = node.encode()
        prev = Cid.of(data, "dag-cbor", "sha2-256")
        cids.append(prev)
        pending += [*rows, (prev, data)]
    store.put_many(pending, hashed=True)
    return cids


def make_conversation(
    store: Store,
    tokens: Sequence[int],
    *,
    model: Model | None = None,
    block_size: int = BLOCK_SIZE,
    title: str = "talk",
    created: str = "2025-01-01T00:00:00Z",
    approx: str | None = None,
    flavour: str = "",
) -> Cid:
    """Store a whole conversation, model and tail included, and give its root."""
    model_cid = store.put_node(model or make_model(block_size=block_size))
    blocks = make_blocks(store, model_cid, tokens, block_size=block_size, flavour=flavour)
    tail = EMPTY_TAIL
    if rest := tuple(tokens[len(blocks) * block_size :]):
        rows = [rows_leaf(f"{flavour} tail {group} {rest} {blocks[-1:]}", len(rest)) for group in range(2)]
        store.put_many(rows)
        tail = Tail(tokens=rest, prefilled=0, domain="test", kv=tuple(cid for cid, _ in rows))
    return chain.build_root(
        store, model=model_cid, block_size=block_size, blocks=blocks, tail=tail,
        payload_bytes=2 * LEAF_BYTES_PER_TOKEN * len(tokens),
        title=title, created=created, approx=approx,
    )  # fmt: skip


def entries(
    model: Cid,
    tokens: Sequence[int],
    blocks: Sequence[Cid],
    domain: str = "test",
    block_size: int = BLOCK_SIZE,
) -> Iterable[IndexEntry]:
    keys = prefix_keys(model, tokens, block_size)
    for key, (prev, block) in zip(keys, pairwise([None, *blocks]), strict=False):
        assert block is not None
        yield IndexEntry(key, block, prev, model, domain)
