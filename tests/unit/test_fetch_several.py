"""Several conversations in one fetch: what they share moves once; whose next tokens are nearest has its turn."""

from itertools import groupby
from pathlib import Path

import pytest

from cyberkv.cybergraph.chain import block_cids, closure, load_root
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import BlockNotFound, TierFull
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.limits import MAX_SEGMENT_LINKS
from cyberkv.cybergraph.nodes import links
from cyberkv.cybergraph.peers import CarFilePeer
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.transfer import fetch, fetch_several, plan_publish, publish_car
from tests.contracts.progress import Counter
from tests.contracts.store_peer import StorePeer
from tests.wire.synthetic import BLOCK_SIZE, LAYERS, ROW_BYTES, record

BLOCK_BYTES = BLOCK_SIZE * ROW_BYTES * LAYERS
SHARED = 2 * MAX_SEGMENT_LINKS
SHORT, LONG = SHARED + 8, SHARED + 20


@pytest.fixture(scope="module")
def origin() -> MemoryStore:
    return MemoryStore()


@pytest.fixture(scope="module")
def forks(origin: MemoryStore) -> list[Cid]:
    """Two conversations with two whole segments in common, and some of the third."""
    return [record(origin, blocks=blocks) for blocks in (SHORT, LONG)]


@pytest.fixture(scope="module")
def strangers(origin: MemoryStore) -> list[Cid]:
    """Two conversations with nothing in common, of two segments and of one."""
    return [record(origin, blocks=MAX_SEGMENT_LINKS + 4, seed="x"), record(origin, blocks=6, seed="y", created="y")]


@pytest.fixture
def ours() -> MemoryStore:
    return MemoryStore()


def test_what_they_share_moves_once(origin: MemoryStore, ours: MemoryStore, index: Index, forks: list[Cid]) -> None:
    peer = StorePeer(origin)
    reports = fetch_several(ours, index, forks, [peer])
    wanted = set(closure(origin, *forks))
    assert len(peer.asked) == len(wanted)
    assert set(ours.cids()) == set(peer.asked) == wanted
    assert [report.root for report in reports] == forks
    assert sum(report.blocks_fetched for report in reports) == len(wanted)
    assert [report.blocks_total for report in reports] == [len(set(closure(origin, root))) for root in forks]
    assert {entry.block for entry in index.entries()} == set(block_cids(ours, load_root(ours, forks[1])))


def turns(peer: StorePeer, store: MemoryStore, roots: list[Cid]) -> list[tuple[int, int]]:
    """Say of whose blocks, and of which segment, the peer gave one after the other."""
    places = {
        block: (turn, at // MAX_SEGMENT_LINKS)
        for turn, root in enumerate(roots)
        for at, block in enumerate(block_cids(store, load_root(store, root)))
    }
    return [place for place, _ in groupby(places[cid] for cid in peer.gave if cid in places)]


def test_each_has_its_turn_where_its_next_tokens_are_near(
    origin: MemoryStore, ours: MemoryStore, index: Index, strangers: list[Cid]
) -> None:
    peer = StorePeer(origin)
    fetch_several(ours, index, strangers, [peer])
    assert turns(peer, origin, strangers) == [(0, 0), (1, 0), (0, 1)]
    one_by_one, alone = StorePeer(origin), MemoryStore()
    for root in strangers:
        fetch(alone, index, root, [one_by_one])
    assert turns(one_by_one, origin, strangers) == [(0, 0), (0, 1), (1, 0)]
    assert set(alone.cids()) == set(ours.cids())


def test_what_is_whole_stays_although_another_is_not(ours: MemoryStore, index: Index) -> None:
    origin = MemoryStore()
    long, short = record(origin, blocks=MAX_SEGMENT_LINKS + 4, seed="x"), record(origin, blocks=6, seed="y")
    second = load_root(origin, long).segments[1]
    lost = links(origin.get(second))[1]
    data = origin.get(lost)
    origin.delete_many([lost])
    with pytest.raises(BlockNotFound, match=str(lost)):
        fetch_several(ours, index, [long, short], [StorePeer(origin)])
    assert (ours.has(long), ours.has(short)) == (False, True)
    origin.put_many([(lost, data)])
    again = StorePeer(origin)
    fetch_several(ours, index, [long, short], [again])
    assert ours.has(long)
    assert set(again.asked).isdisjoint(block_cids(origin, load_root(origin, short)))


@pytest.mark.parametrize("missing_bytes", [0, 1])
def test_room_is_claimed_once_for_what_they_share(
    origin: MemoryStore, ours: MemoryStore, index: Index, forks: list[Cid], missing_bytes: int
) -> None:
    free_bytes = LONG * BLOCK_BYTES - missing_bytes
    if not missing_bytes:
        fetch_several(ours, index, forks, [StorePeer(origin)], free_bytes=free_bytes)
        return
    with pytest.raises(TierFull, match=str(forks[1])):
        fetch_several(ours, index, forks, [StorePeer(origin)], free_bytes=free_bytes)


def test_room_is_for_all_together(origin: MemoryStore, ours: MemoryStore, index: Index, strangers: list[Cid]) -> None:
    together = (MAX_SEGMENT_LINKS + 4 + 6) * BLOCK_BYTES
    with pytest.raises(TierFull) as caught:
        fetch_several(ours, index, strangers, [StorePeer(origin)], free_bytes=together - 1)
    assert caught.value.data["cid"] == str(strangers[1])
    assert caught.value.data["needed_bytes"] == 6 * BLOCK_BYTES
    fetch_several(MemoryStore(), index, strangers, [StorePeer(origin)], free_bytes=together)


def test_a_file_of_one_conversation_does_not_count_as_cut_short_for_another(
    ours: MemoryStore, index: Index, tmp_path: Path
) -> None:
    origin = MemoryStore()
    roots = [record(origin, blocks=3, seed=seed) for seed in "ab"]
    peers = []
    for root in roots:
        publish_car(origin, plan_publish(origin, index, root, "public"), tmp_path / f"{root}.car")
        peers.append(CarFilePeer(tmp_path / f"{root}.car"))
    reports = fetch_several(ours, index, roots, peers)
    assert [report.refused for report in reports] == [(), ()]
    assert all(map(ours.has, roots))
    for peer in peers:
        peer.close()


def test_progress_adds_up_over_all(origin: MemoryStore, ours: MemoryStore, index: Index, strangers: list[Cid]) -> None:
    progress = Counter()
    reports = fetch_several(ours, index, strangers, [StorePeer(origin)], progress=progress)
    [(_, blocks_total, bytes_total)] = progress.phases
    assert (progress.blocks, progress.leaf_bytes) == (blocks_total, bytes_total)
    assert sum(report.blocks_total for report in reports) == blocks_total


def test_none_and_one_twice(origin: MemoryStore, ours: MemoryStore, index: Index, strangers: list[Cid]) -> None:
    assert fetch_several(ours, index, [], [StorePeer(origin)]) == []
    reports = fetch_several(ours, index, [strangers[1]] * 2, [StorePeer(origin)])
    assert [report.root for report in reports] == [strangers[1]]
