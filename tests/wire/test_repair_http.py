"""Damage is put right from the gateway that a conversation came from, and never by naming private blocks to one."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cyberkv.cybergraph import chain
from cyberkv.cybergraph.car import write_car
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.nodes import Block
from cyberkv.cybergraph.peers import HttpPeer
from cyberkv.cybergraph.store import DiskStore, MemoryStore
from cyberkv.cybergraph.store.fsck import Counts, fsck
from cyberkv.cybergraph.store.quarantine import quarantined
from cyberkv.cybergraph.store.repair import Repaired, repair
from cyberkv.cybergraph.store.room import Room
from cyberkv.cybergraph.transfer import fetch
from tests.contracts.disk import flip
from tests.wire.conftest import Served
from tests.wire.synthetic import contents, record

Publish = Callable[..., Served]
PeerAt = Callable[..., HttpPeer]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DiskStore]:
    with DiskStore(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def theirs() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def fetched(
    store: DiskStore, index: Index, theirs: MemoryStore, publish: Publish, peer_at: PeerAt
) -> tuple[Cid, Served]:
    """A conversation that was fetched from a gateway which still runs."""
    root = record(theirs)
    served = publish(theirs, root)
    fetch(store, index, root, [peer_at(served.url)])
    index.set_head("theirs", root, "")
    index.add_sources(root, [served.url])
    served.requests.clear()
    return root, served


def block_of(store: DiskStore, root: Cid, at: int) -> tuple[Cid, Block]:
    step = list(chain.walk(store, chain.load_root(store, root)))[at]
    return step.cid, step.block


def mend(store: DiskStore, index: Index, *sources: str) -> Repaired:
    return repair(store, index, list(fsck(store, index)), sources)


def test_a_leaf_a_node_and_a_page_come_back(
    store: DiskStore, index: Index, theirs: MemoryStore, fetched: tuple[Cid, Served]
) -> None:
    root, served = fetched
    block, node = block_of(store, root, 2)
    page = chain.load_root(store, root).segments[0]
    bad = {node.kv[0], block, page, root}
    for cid in bad:
        flip(store, cid)
    assert {each.cid for each in fsck(store, index) if each.what == "block"} == bad
    done = mend(store, index)
    assert set(done.dropped) == bad
    assert done.refetched == {root: len(bad)}
    assert done.failed == {}
    assert contents(store, root) == contents(theirs, root)
    assert list(fsck(store, index)) == []
    assert {cid for cid, _ in quarantined(store)} == bad
    assert served.requests


def test_a_sound_home_asks_nobody(store: DiskStore, index: Index, fetched: tuple[Cid, Served]) -> None:
    _, served = fetched
    done = mend(store, index)
    assert (done.dropped, done.refetched, served.requests) == ([], {}, [])


def test_private_blocks_are_not_named_to_a_gateway(
    store: DiskStore, index: Index, theirs: MemoryStore, fetched: tuple[Cid, Served], tmp_path: Path
) -> None:
    _, served = fetched
    mine = record(store, seed="mine")
    index.set_head("mine", mine, "")
    sound = contents(store, mine)
    with (tmp_path / "backup.car").open("wb") as out:
        write_car(out, [mine], sound.items())
    _, node = block_of(store, mine, 1)
    flip(store, node.kv[0])
    done = mend(store, index, served.url)
    assert done.dropped == [node.kv[0]]
    assert list(done.failed) == [mine]
    assert served.requests == []
    assert [(each.cid, each.what) for each in fsck(store, index)] == [(node.kv[0], "conversation")]
    done = mend(store, index, str(tmp_path / "backup.car"))
    assert done.refetched == {mine: 1}
    assert contents(store, mine) == sound
    assert list(fsck(store, index)) == []


def test_a_gateway_that_is_gone_is_said(store: DiskStore, index: Index, tmp_path: Path) -> None:
    root = record(store)
    index.set_head("theirs", root, "")
    index.add_sources(root, [str(tmp_path / "gone.car")])
    _, node = block_of(store, root, 1)
    flip(store, node.kv[0])
    done = mend(store, index)
    assert list(done.failed) == [root]
    assert "gone.car" in done.failed[root]


def test_leaves_that_made_room_are_no_damage_and_come_back(
    store: DiskStore, index: Index, theirs: MemoryStore, fetched: tuple[Cid, Served], peer_at: PeerAt
) -> None:
    root, served = fetched
    leaves = {cid for cid in contents(store, root) if cid.codec == "raw"}
    with closing(Room(store, lambda: index)) as room:
        room.fit(store.used_bytes() - 5 * 4096)
    gone = leaves - set(store.cids())
    assert 5 <= len(gone) <= len(leaves)
    counts = Counts()
    assert list(fsck(store, index, counts)) == []
    assert counts.absent_leaves == len(gone)
    report = fetch(store, index, root, [peer_at(served.url)])
    assert report.blocks_fetched == len(gone)
    assert contents(store, root) == contents(theirs, root)
    # The controls: what nobody else has, and what is pinned or published, is missed.
    for hold in (lambda: index.pin(root, ""), lambda: index.publish(root, [])):
        store.delete_many(gone)
        hold()
        assert {each.cid for each in fsck(store, index)} == gone
        fetch(store, index, root, [peer_at(served.url)])
        index.unpin(root)
