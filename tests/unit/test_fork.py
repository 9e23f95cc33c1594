"""Forks of recorded conversations, and whether a block fits its place."""

from dataclasses import replace

import pytest

from cyberkv.cybergraph import chain
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import BadReference, BlockNotFound, OutOfRange
from cyberkv.cybergraph.nodes import Block
from cyberkv.cybergraph.store import MemoryStore
from tests.contracts.synthetic import BLOCK_SIZE, make_conversation, make_model

LENGTH = 300 * BLOCK_SIZE + 3


@pytest.mark.parametrize("at", [0, 1, BLOCK_SIZE, 5 * BLOCK_SIZE + 2, 256 * BLOCK_SIZE, LENGTH - 1, LENGTH])
def test_a_fork_is_the_beginning_of_its_parent(memory_store: MemoryStore, at: int) -> None:
    parent = make_conversation(memory_store, range(LENGTH), approx="spliced")
    before = set(memory_store.cids())
    cid, shared = chain.fork_root(memory_store, parent, at, block_bytes=7, title="branch", created="now")
    root, whole = chain.load_root(memory_store, cid), chain.load_root(memory_store, parent)
    assert chain.tokens(memory_store, root) == list(range(at))
    assert shared == at // BLOCK_SIZE
    assert list(chain.block_cids(memory_store, root)) == list(chain.block_cids(memory_store, whole))[:shared]
    assert (root.parent, root.fork_at, root.approx, root.bytes) == (parent, at, "spliced", 7 * shared)
    assert (root.title, root.created, root.tail.kv) == ("branch", "now", None)
    # Inside a sealed block every row was canonical; of the parent's tail here none was.
    assert root.tail.prefilled == (at % BLOCK_SIZE if at < 300 * BLOCK_SIZE else 0)
    new = set(memory_store.cids()) - before
    assert new <= {cid, *root.segments}


@pytest.mark.parametrize("at", [-1, LENGTH + 1])
def test_a_fork_outside_the_conversation_writes_nothing(memory_store: MemoryStore, at: int) -> None:
    parent = make_conversation(memory_store, range(LENGTH))
    before = set(memory_store.cids())
    with pytest.raises(OutOfRange, match=str(LENGTH)):
        chain.fork_root(memory_store, parent, at, block_bytes=7)
    assert set(memory_store.cids()) == before


def test_a_fork_shares_only_blocks_whose_leaves_are_here(memory_store: MemoryStore) -> None:
    parent = make_conversation(memory_store, range(LENGTH))
    third = list(chain.walk(memory_store, chain.load_root(memory_store, parent)))[2]
    memory_store.delete_many(third.block.kv)
    before = set(memory_store.cids())
    with pytest.raises(BlockNotFound, match=str(third.block.kv[0])) as caught:
        chain.fork_root(memory_store, parent, 3 * BLOCK_SIZE, block_bytes=7)
    assert f"cyberkv fetch {parent}" in caught.value.hint
    assert set(memory_store.cids()) == before
    cid, shared = chain.fork_root(memory_store, parent, 3 * BLOCK_SIZE - 1, block_bytes=7)  # the control: before it
    assert (shared, chain.missing(memory_store, cid)) == (2, [])


def test_only_a_conversation_can_be_forked(memory_store: MemoryStore) -> None:
    with pytest.raises(BadReference, match="not a conversation"):
        chain.fork_root(memory_store, memory_store.put_node(make_model()), 0, block_bytes=7)


def test_a_block_fits_one_place_only() -> None:
    one, two = (Cid.of(data, "dag-cbor", "sha2-256") for data in (b"one", b"two"))
    leaf = Cid.of(b"leaf", "raw", "blake3")
    block = Block(model=one, prev=None, tokens=(1, 2), kv=(leaf, leaf))

    def field(block: Block) -> str | None:
        return chain.misfit(block, model=one, prev=None, tokens=[1, 2], leaves=2)

    assert field(block) is None
    changes = {"model": two, "prev": two, "tokens": (1, 3), "kv": (leaf,)}
    for name, value in changes.items():
        assert field(replace(block, **{name: value})) == name  # type: ignore[arg-type]
