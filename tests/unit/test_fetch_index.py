"""A fetch indexes blocks in batches, and never before they are stored."""

from collections.abc import Iterable

import pytest

from cyberkv.cybergraph.chain import block_cids, load_root
from cyberkv.cybergraph.errors import BlockNotFound
from cyberkv.cybergraph.index import Divergence, Index, IndexEntry
from cyberkv.cybergraph.nodes import links
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.transfer import fetch
from cyberkv.cybergraph.transfer.head import Head
from tests.contracts.store_peer import StorePeer
from tests.wire.synthetic import conversation

BATCH = 4


@pytest.fixture
def batches(index: Index, monkeypatch: pytest.MonkeyPatch) -> list[list[IndexEntry]]:
    """What was indexed at one time each."""
    seen: list[list[IndexEntry]] = []
    add = index.add_blocks

    def noted(entries: Iterable[IndexEntry]) -> list[Divergence]:
        seen.append(list(entries))
        return add(seen[-1])

    monkeypatch.setattr(index, "add_blocks", noted)
    monkeypatch.setitem(Head.bring.__globals__, "_INDEXED_BLOCKS", BATCH)
    return seen


@pytest.mark.parametrize("blocks", [1, BATCH, 4 * BATCH + 1])
def test_every_block_is_indexed_once_and_in_order(index: Index, batches: list[list[IndexEntry]], blocks: int) -> None:
    origin, root = conversation(blocks=blocks)
    store = MemoryStore()
    fetch(store, index, root, [StorePeer(origin)])
    assert [len(batch) for batch in batches] == [BATCH] * (blocks // BATCH) + (
        [blocks % BATCH] if blocks % BATCH else []
    )
    assert [entry.block for batch in batches for entry in batch] == list(block_cids(store, load_root(store, root)))
    index.rebuild(store)
    control = sorted(index.entries())
    assert sorted((index.filed_as(entry.prefix), *entry[1:]) for batch in batches for entry in batch) == control


def test_what_is_indexed_is_whole_although_the_rest_never_came(index: Index, batches: list[list[IndexEntry]]) -> None:
    origin, root = conversation(blocks=3 * 256)
    second = load_root(origin, root).segments[1]
    origin.delete_many([links(origin.get(second))[3]])
    store = MemoryStore()
    with pytest.raises(BlockNotFound):
        fetch(store, index, root, [StorePeer(origin)])
    assert not store.has(root)
    indexed = [entry.block for entry in index.entries()]
    assert len(indexed) == 256 - BATCH, "the first segment alone was complete, and its last batch waits for the rest"
    assert store.missing(indexed) == []
    assert store.missing(leaf for block in indexed for leaf in links(store.get(block)) if leaf.codec == "raw") == []


def test_approximate_blocks_are_never_indexed(index: Index, batches: list[list[IndexEntry]]) -> None:
    origin, root = conversation(blocks=3 * BATCH, approx="rounded")
    fetch(MemoryStore(), index, root, [StorePeer(origin)])
    assert (batches, list(index.entries())) == ([], [])
