"""Damage is put right from the gateway that a conversation came from, and never by naming private blocks to one."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cyberkv.cybergraph import chain
from cyberkv.cybergraph.car import write_car
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import TierFull
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.keeping.fsck import Counts, fsck
from cyberkv.cybergraph.keeping.quarantine import quarantine, quarantined
from cyberkv.cybergraph.keeping.repair import Repaired, repair
from cyberkv.cybergraph.keeping.room import Room
from cyberkv.cybergraph.nodes import Block
from cyberkv.cybergraph.peers import HttpPeer, Patience, Peer, open_peer
from cyberkv.cybergraph.peers.probe import Probe
from cyberkv.cybergraph.store import DiskStore, MemoryStore
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


def at(source: str, patience: Patience) -> Peer:
    return open_peer(source, patience=patience)


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


def test_what_a_gateway_has_no_more_stays(
    store: DiskStore, index: Index, theirs: MemoryStore, fetched: tuple[Cid, Served]
) -> None:
    root, served = fetched
    sound = contents(store, root)
    cap_bytes = store.used_bytes() - 5 * 4096
    theirs.delete_many([root])
    with closing(Room(store, lambda: index, Probe(at))) as room, pytest.raises(TierFull, match="only copy"):
        room.fit(cap_bytes)
    assert [each.split("?")[0] for each in served.requests] == [f"/ipfs/{root}"]
    assert contents(store, root) == sound
    # The control: what it has again may go.
    theirs.put(root, sound[root])
    with closing(Room(store, lambda: index, Probe(at))) as room:
        room.fit(cap_bytes)
    assert store.missing(sound)


def test_a_node_is_told_of_private_blocks_no_more_than_a_gateway(store: DiskStore, index: Index) -> None:
    mine = record(store, seed="mine")
    index.set_head("mine", mine, "")
    flip(store, block_of(store, mine, 1)[1].kv[0])
    done = mend(store, index, "kubo:")
    assert "no peer was named" in done.failed[mine]
    index.publish(mine, [])
    assert "no peer was named" not in mend(store, index, "kubo:").failed[mine]  # the control: it may be asked


def test_a_node_of_wrong_form_is_kept_aside(store: DiskStore, index: Index) -> None:
    root = record(store)
    index.set_head("talk", root, "")
    data = b"\xff no node"
    bad = Cid.of(data, "dag-cbor", "sha2-256")
    store.put(bad, data)
    before = set(store.cids())
    done = mend(store, index)
    assert done.dropped == [bad]
    assert set(store.cids()) == before - {bad}
    assert [(cid, path.read_bytes()) for cid, path in quarantined(store)] == [(bad, data)]


def test_what_a_slab_lost_is_given_up_by_a_repair_alone(
    store: DiskStore, index: Index, theirs: MemoryStore, fetched: tuple[Cid, Served]
) -> None:
    root, _ = fetched
    leaves = {cid for cid in contents(store, root) if cid.codec == "raw"}
    for slab in store.path.glob("slab-*"):
        os.truncate(slab, 0)
    assert quarantine(store, leaves) == []
    done = mend(store, index)
    assert set(done.dropped) == leaves
    assert done.refetched == {root: len(leaves)}
    assert contents(store, root) == contents(theirs, root)
    assert list(quarantined(store)) == []  # there were no bytes to keep


def test_leaves_that_made_room_are_no_damage_and_come_back(
    store: DiskStore, index: Index, theirs: MemoryStore, fetched: tuple[Cid, Served], peer_at: PeerAt
) -> None:
    root, served = fetched
    leaves = {cid for cid in contents(store, root) if cid.codec == "raw"}
    with closing(Room(store, lambda: index, Probe(at))) as room:
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
