"""Collecting garbage keeps exactly what is reachable, and eviction takes exactly what may go, in its order."""

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberkv.cybergraph import chain
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import TierFull
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.keeping.fsck import fsck
from cyberkv.cybergraph.keeping.gc import collect, find_garbage
from cyberkv.cybergraph.keeping.room import Room
from cyberkv.cybergraph.keeping.victims import RUN_BYTES, choose, place_of, turn
from cyberkv.cybergraph.nodes import links
from cyberkv.cybergraph.store import DiskStore, Store
from cyberkv.cybergraph.store.catalog import Place
from cyberkv.cybergraph.store.slab import SlabId
from tests.contracts.synthetic import entries, leaf, make_conversation, make_model

MODEL = make_model().cid()
TEXTS = st.lists(st.integers(0, 1), min_size=1, max_size=14)
USES = st.lists(st.sampled_from(["name", "rename", "publish", "pin", "pin block", "forget", "nothing"]), max_size=3)


@contextmanager
def opened() -> Iterator[tuple[DiskStore, Index]]:
    folder = Path(tempfile.mkdtemp())
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        yield stack.enter_context(DiskStore(folder / "store")), stack.enter_context(Index(folder / "index"))


def use(store: Store, index: Index, root: Cid, name: str, uses: Iterable[str]) -> set[Cid]:
    """Do as told with a conversation; give what it holds on to."""
    named, held = False, set()
    for each in uses:
        match each:
            case "name" | "rename":
                index.set_head(name if each == "name" else "shared", root, "")
                named = named or each == "name"
                held.add(root)
            case "publish":
                index.publish(root, chain.closure(store, root))
                held.add(root)
            case "pin":
                index.pin(root, "")
                held.add(root)
            case "pin block":
                blocks = list(chain.block_cids(store, chain.load_root(store, root)))
                index.pin(blocks[0], "") if blocks else None
                held.update(blocks[:1])
            case "forget" if named:
                index.drop(name)
                named = False
                held = {
                    each for each in held if each != root or root in {*index.published(), *index.pins(), *index.roots()}
                }
    return held


def walk(store: Store, roots: Iterable[Cid]) -> set[Cid]:
    """The oracle: follow every link of every node, but not to the parent of a fork."""
    seen: set[Cid] = set()
    ahead = list(roots)
    while ahead:
        cid = ahead.pop()
        if cid not in seen:
            seen.add(cid)
            if cid.codec == "dag-cbor":
                ahead += links(store.get(cid))
    return seen


@given(talks=st.lists(st.tuples(TEXTS, USES), max_size=6), orphans=st.sets(st.integers(0, 3)))
def test_gc_keeps_exactly_what_is_reachable(talks: list[tuple[list[int], list[str]]], orphans: set[int]) -> None:
    with opened() as (store, index):
        store.put_node(make_model("another"))  # models stay without anybody's word
        roots: set[Cid] = set()
        for number, (tokens, uses) in enumerate(talks):
            root = make_conversation(store, tokens, title=f"talk {number}")
            blocks = list(chain.block_cids(store, chain.load_root(store, root)))
            index.add_blocks(entries(MODEL, tokens, blocks))
            roots |= use(store, index, root, f"talk {number}", uses)
        store.put_many([leaf(b"orphan %d" % number) for number in orphans])
        models = {make_model("another").cid(), *([MODEL] if talks else [])}
        expected = walk(store, roots) | models
        before = set(store.cids())
        planned = find_garbage(store, index)
        assert set(store.cids()) == before  # looking changes nothing
        garbage, swept = collect(store, index)
        assert garbage == planned
        assert {*garbage.nodes, *garbage.leaves} == before - expected
        assert set(store.cids()) == expected
        assert swept.undeletable == {}
        assert list(fsck(store, index)) == []
        assert all(store.has(entry.block) for entry in index.entries())
        again, _ = collect(store, index)
        assert again.nodes == again.leaves == []


SLABS = st.builds(SlabId, st.sampled_from([4, 8]), st.integers(0, 1))


@st.composite
def candidates(draw: st.DrawFn) -> list[tuple[bool, int, Place]]:
    """Whether somebody wants it, when it was used, where it lies."""
    places = draw(st.sets(st.tuples(SLABS, st.integers(0, 6)), max_size=20))
    return [(draw(st.booleans()), draw(st.integers(0, 3)), Place(slab, slot, 0)) for slab, slot in sorted(places)]


def total(turns: Iterable[int]) -> int:
    return sum(place_of(each).slab.slot_bytes for each in turns)


@given(made=candidates(), needed_kib=st.integers(0, 200), ahead_kib=st.integers(0, 100))
def test_victims_are_the_first_in_order_and_enough(
    made: list[tuple[bool, int, Place]], needed_kib: int, ahead_kib: int
) -> None:
    known = {turn(place, tick=tick, is_wanted=is_wanted): (is_wanted, tick, place) for is_wanted, tick, place in made}
    assert len(known) == len(made)
    assert [place_of(each) for each in known] == [place for _, _, place in made]
    ordered = sorted(known)
    assert [known[each] for each in ordered] == sorted(
        made, key=lambda each: (each[0], each[1], each[2].slab.slot_kib, -each[2].slab.number, -each[2].slot)
    )
    taken = list(choose(ordered, needed_kib * 1024))
    assert taken == ordered[: len(taken)]
    assert total(taken) >= min(total(ordered), needed_kib * 1024)
    assert total(taken) - needed_kib * 1024 < RUN_BYTES + 8192  # a run more than needed, not a conversation
    ahead = list(choose(ordered, needed_kib * 1024, ahead_kib * 1024))
    assert ahead == ordered[: len(ahead)]
    assert ahead[: len(taken)] == taken
    assert not any(known[each][0] for each in ahead[len(taken) :])  # no more than needed of what somebody wants
    assert total(ahead) >= min(total(each for each in ordered if not known[each][0]), ahead_kib * 1024)


def test_a_run_is_taken_whole_up_to_a_megabyte() -> None:
    run = [turn(Place(SlabId(64, 0), slot, 0), tick=5, is_wanted=False) for slot in range(100)]
    other = [turn(Place(SlabId(64, 0), slot, 0), tick=6, is_wanted=False) for slot in range(100, 110)]
    assert len(list(choose(sorted([*run, *other]), 1))) == RUN_BYTES // (64 * 1024)
    assert len(list(choose(sorted([*run[:5], *other]), 1))) == 5  # the control: another tick is another run


@given(
    kept=st.integers(0, 3), fetched=st.integers(0, 3), gone=st.integers(0, 2), loose=st.integers(0, 6),
    coming=st.integers(1, 8), spare=st.integers(-4, 12),
)  # fmt: skip
def test_what_may_be_the_only_copy_stays(
    kept: int, fetched: int, gone: int, loose: int, coming: int, spare: int
) -> None:
    """Rooms of 4 KiB slots: talks of 3 leaves, `loose` leaves, and then `coming` more.

    `kept` talks are from here, `fetched` ones from a source that has them, `gone` ones from one that has them no more.
    """
    with opened() as (store, index):
        mine = [make_conversation(store, [number] * 9, flavour="mine") for number in range(kept)]
        theirs = [make_conversation(store, [number] * 9, flavour="theirs") for number in range(fetched)]
        lost = [make_conversation(store, [number] * 9, flavour="lost") for number in range(gone)]
        garbage = [leaf(b"loose %d" % number) for number in range(loose)]
        store.put_many(garbage)
        for number, root in enumerate([*mine, *theirs, *lost]):
            index.set_head(f"talk {number}", root, "")
        for root in theirs:
            index.add_sources(root, ["http://gone", "http://there"])
        for root in lost:
            index.add_sources(root, ["http://gone"])
        needed = walk(store, [*mine, *lost])
        wanted = {cid for cid in walk(store, theirs) if cid.codec == "raw"} - needed
        asked: set[tuple[str, Cid]] = set()

        def has(source: str, root: Cid) -> bool:
            asked.add((source, root))
            return source == "http://there"

        with closing(Room(store, lambda: index, has)) as room:
            cap_bytes = store.used_bytes() + spare * 4096
            more = [leaf(b"more %d" % number) for number in range(coming)]
            before = set(store.cids())
            over = max(0, coming - spare)  # slots that have to go
            if over <= loose:
                room.fit(cap_bytes, coming * 4096, [cid for cid, _ in more])
                assert asked == set()  # nobody is asked while there is anything else
            elif over > len(wanted) + loose:
                with pytest.raises(TierFull) as caught:
                    room.fit(cap_bytes, coming * 4096, [cid for cid, _ in more])
                assert caught.value.data["cap_bytes"] == cap_bytes
                assert set(store.cids()) == before
                return
            room.fit(cap_bytes, coming * 4096, [cid for cid, _ in more])
            evicted = before - set(store.cids())
            assert store.used_bytes() + coming * 4096 <= cap_bytes
            assert evicted <= wanted | {cid for cid, _ in garbage}
            if evicted & wanted:
                assert {cid for cid, _ in garbage} <= evicted  # nobody's first
                assert asked >= {("http://there", root) for root in theirs}
            assert (len(evicted) > 0) == (over > 0)
            assert room.evicted_leaves == len(evicted)
            store.put_many(more)


def test_controls() -> None:
    """The oracle tells a kept block from garbage, and a cap that is not reached evicts nothing."""
    with opened() as (store, index):
        root = make_conversation(store, range(9))
        assert set(store.cids()) == walk(store, [root])
        assert find_garbage(store, index).conversations.keys() == {root}
        index.set_head("talk", root, "")
        assert find_garbage(store, index).conversations == {}
        store.put_many([leaf(b"loose")])
        with closing(Room(store, lambda: index)) as room:
            room.fit(store.used_bytes())
            assert store.has(leaf(b"loose")[0])
        with closing(Room(store, lambda: index)) as room:
            room.fit(store.used_bytes() - 1)
            assert not store.has(leaf(b"loose")[0])
            with pytest.raises(TierFull, match="only copy"):
                room.fit(store.used_bytes() - 1)
