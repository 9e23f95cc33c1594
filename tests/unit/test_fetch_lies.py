"""Conversations that do not add up, whoever sends them."""

from collections.abc import Callable

import pytest

from cyberkv.cybergraph.chain import block_cids, load_root
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import (
    LimitExceeded,
    MalformedNode,
)
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.nodes import EMPTY_TAIL, Block, Conversation, NextBlock, Segment, Tail
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.transfer import fetch
from tests.contracts.store_peer import StorePeer
from tests.wire.synthetic import (
    BLOCK_SIZE,
    conversation,
    other_model,
    put_leaves,
)


def rewritten(origin: MemoryStore, root: Cid, **changes: object) -> Cid:
    """The same conversation under a root with other values."""
    fields = {name: getattr(load_root(origin, root), name) for name in Conversation.__slots__}
    return origin.put_node(Conversation(**{**fields, **changes}))


def with_segment(origin: MemoryStore, root: Cid, **changes: object) -> Cid:
    node = load_root(origin, root)
    segment = Segment.decode(origin.get(node.segments[0]))
    fields = {name: getattr(segment, name) for name in Segment.__slots__}
    return rewritten(origin, root, segments=(origin.put_node(Segment(**{**fields, **changes})),))


def with_block(origin: MemoryStore, root: Cid, **changes: object) -> Cid:
    """Another first block, linked as the first one was; only blocks after it notice."""
    node = load_root(origin, root)
    first = Block.decode(origin.get(next(block_cids(origin, node))))
    fields = {name: getattr(first, name) for name in Block.__slots__}
    block = origin.put_node(Block(**{**fields, **changes}))
    segment = Segment(node.model, 0, (NextBlock(None, block, 0),))
    return rewritten(origin, root, segments=(origin.put_node(segment),), length=BLOCK_SIZE, tail=EMPTY_TAIL)


Lie = Callable[[MemoryStore, Cid], Cid]
LIES: dict[str, Lie] = {
    "a leaf for a root": lambda origin, root: put_leaves(origin, "x", 1)[0],
    "a block for a root": lambda origin, root: next(block_cids(origin, load_root(origin, root))),
    "a segment for a root": lambda origin, root: load_root(origin, root).segments[0],
    "a model for a root": lambda origin, root: load_root(origin, root).model,
    "fewer bytes than promised": lambda origin, root: rewritten(origin, root, bytes=load_root(origin, root).bytes - 1),
    "too many segments": lambda origin, root: rewritten(origin, root, segments=load_root(origin, root).segments * 2),
    "no segments": lambda origin, root: rewritten(origin, root, segments=()),
    "more tokens than blocks": lambda origin, root: rewritten(origin, root, length=5 * BLOCK_SIZE + 1),
    "fewer blocks than links": lambda origin, root: rewritten(origin, root, length=4 * BLOCK_SIZE + 2),
    "another block size": lambda origin, root: rewritten(
        origin, root, block_size=2 * BLOCK_SIZE, length=2, segments=()
    ),
    "a block for a model": lambda origin, root: rewritten(
        origin, root, model=next(block_cids(origin, load_root(origin, root)))
    ),
    "blocks of another model": lambda origin, root: rewritten(
        origin, root, model=origin.put_node(other_model(weights="blake3:ff"))
    ),
    "a model of more layers": lambda origin, root: rewritten(
        origin, root, model=origin.put_node(other_model(num_layers=7)), bytes=1 << 30
    ),
    "a model with leaves over the limit": lambda origin, root: rewritten(
        origin, root, model=origin.put_node(other_model(head_dim=4096, num_kv_heads=4096)), bytes=1 << 60
    ),
    "a tail of one leaf": lambda origin, root: rewritten(
        origin, root, tail=Tail((1, 2), 0, "test", put_leaves(origin, "y", 2)[:1])
    ),
    "tail leaves of other sizes": lambda origin, root: rewritten(
        origin, root, tail=Tail((1, 2), 0, "test", put_leaves(origin, "y", 3))
    ),
    "a segment that starts elsewhere": lambda origin, root: with_segment(origin, root, start=256),
    "a segment of another model": lambda origin, root: with_segment(
        origin, root, model=origin.put_node(other_model(weights="blake3:ff"))
    ),
    "a block for a segment": lambda origin, root: rewritten(
        origin, root, segments=(next(block_cids(origin, load_root(origin, root))),)
    ),
    "a block with another before it": lambda origin, root: with_block(origin, root, prev=root),
    "a block with too few tokens": lambda origin, root: with_block(origin, root, tokens=(1,)),
    "a block of another model": lambda origin, root: with_block(
        origin, root, model=origin.put_node(other_model(weights="blake3:ff"))
    ),
    "a block of one leaf": lambda origin, root: with_block(origin, root, kv=put_leaves(origin, "z", BLOCK_SIZE)[:1]),
    "a block with leaves of other sizes": lambda origin, root: with_block(
        origin, root, kv=put_leaves(origin, "z", BLOCK_SIZE + 1)
    ),
    "a block with its leaves swapped": lambda origin, root: with_block(
        origin, root, kv=put_leaves(origin, "z", BLOCK_SIZE)[::-1]
    ),
    "a block with one leaf twice": lambda origin, root: with_block(
        origin, root, kv=put_leaves(origin, "z", BLOCK_SIZE)[:1] * 2
    ),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_root_is_refused_and_leaves_nothing(index: Index, lie: str) -> None:
    origin, root = conversation(blocks=5)
    false_root = LIES[lie](origin, root)
    store = MemoryStore()
    with pytest.raises((MalformedNode, LimitExceeded)) as caught:
        fetch(store, index, false_root, [StorePeer(origin)])
    assert caught.value.exit_code == 4
    assert list(store.cids()) == []
    assert list(index.entries()) == []
    fetch(store, index, root, [StorePeer(origin)])


def test_a_lie_about_what_is_here_is_refused_too(index: Index) -> None:
    store, root = conversation(blocks=5)
    for lie in LIES.values():
        false_root = lie(store, root)
        before = set(store.cids())
        with pytest.raises((MalformedNode, LimitExceeded)):
            fetch(store, index, false_root, [])
        assert set(store.cids()) == before
    assert list(index.entries()) == []


@pytest.mark.parametrize("promise", [0, 1_000_000])
def test_a_promise_that_its_leaves_exceed_is_refused_before_any_leaf_moves(index: Index, promise: int) -> None:
    origin, root = conversation(blocks=1000, tail_tokens=0)
    assert load_root(origin, root).bytes > 1_000_000
    peer = StorePeer(origin)
    with pytest.raises(LimitExceeded, match="promises") as caught:
        fetch(MemoryStore(), index, rewritten(origin, root, bytes=promise), [peer])
    assert caught.value.data["promised"] == promise
    assert len(peer.gave) == 2
