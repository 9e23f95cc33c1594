"""What a home does to its files, each as something another process can do, with what must hold wherever it stops."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from cyberkv.cybergraph import chain
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import CyberKVError
from cyberkv.cybergraph.index import Index, IndexEntry
from cyberkv.cybergraph.keeping.fsck import fsck
from cyberkv.cybergraph.keeping.gc import collect
from cyberkv.cybergraph.keeping.repair import repair
from cyberkv.cybergraph.keeping.room import Room, write_cap
from cyberkv.cybergraph.peers import CarFilePeer
from cyberkv.cybergraph.prefix import prefix_keys
from cyberkv.cybergraph.store import DiskStore, Store
from cyberkv.cybergraph.transfer import fetch, plan_publish, publish_car, publish_here
from tests.contracts.disk import flip
from tests.contracts.store_peer import StorePeer
from tests.contracts.synthetic import blocks, make_model
from tests.wire.synthetic import BLOCK_SIZE, MODEL, contents, conversation, record

Say = Callable[[object], None]

OLD = blocks(12)
"""What a home holds before anything happens, but for the first: its slot is free."""
NEW = [*blocks(20)[12:], *blocks(3, 9000), (make_model().cid(), make_model().encode())]
"""Leaves of two slot sizes and a node."""
LATER = blocks(6, 4000)
TALK, TALK_ROOT = conversation(blocks=6)
TALK_BLOCKS = contents(TALK, TALK_ROOT)


@contextmanager
def opened(home: Path) -> Iterator[tuple[DiskStore, Index]]:
    with DiskStore(home / "store") as store, Index(home / "index") as index:
        yield store, index


def _entries(store: Store) -> list[IndexEntry]:
    steps = list(chain.walk(store, chain.load_root(store, TALK_ROOT)))
    tokens = [token for step in steps for token in step.block.tokens]
    keys = prefix_keys(MODEL.cid(), tokens, BLOCK_SIZE)
    return [IndexEntry(key, s.cid, s.block.prev, MODEL.cid(), "own") for key, s in zip(keys, steps, strict=True)]


def prepare(home: Path) -> None:
    """Make the home that every scenario starts from: old blocks, a whole conversation, an empty index."""
    home.mkdir()
    with opened(home) as (store, _):
        store.put_many(OLD)
        store.delete_many([OLD[0][0]])
        record(store, blocks=6)


def write(home: Path, say: Say) -> None:
    with DiskStore(home / "store") as store:
        store.put_many(NEW)
        say("new")
        store.put_many(LATER)
        say("later")


def delete(home: Path, say: Say) -> None:
    """The last write takes slots that were freed just before."""
    with DiskStore(home / "store") as store:
        store.delete_many(cid for cid, _ in OLD[1:5])
        say("deleted")
        store.put_many(LATER)
        say("later")


def bring(home: Path, say: Say) -> None:
    """In many small batches, so that a kill finds every state between them."""
    source, root = conversation(blocks=5, seed="b")
    with opened(home) as (store, index):
        fetch(store, index, root, [StorePeer(source)], budget_bytes=3000)
        say("fetched")
        index.set_head("b", root, "")
        say("named")


def mark(home: Path, say: Say) -> None:
    with opened(home) as (store, index):
        index.add_blocks(_entries(store))
        say("indexed")
        index.set_head("talk", TALK_ROOT, "2025-01-01T00:00:00Z")
        say("named")
        publish_here(store, index, plan_publish(store, index, TALK_ROOT, "public"))
        say("published")
        index.rebuild(store)
        say("rebuilt")


def export(home: Path, say: Say) -> None:
    with opened(home) as (store, index):
        publish_car(store, plan_publish(store, index, TALK_ROOT, "public"), home / "talk.car")
        say("exported")


def collect_garbage(home: Path, say: Say) -> None:
    with opened(home) as (store, index):
        index.set_head("talk", TALK_ROOT, "")
        say("named")
        collect(store, index)
        say("collected")


CAP_BYTES = 200 << 10
"""Room for all that is needed and what is new, but not for what is old."""


def evict(home: Path, say: Say) -> None:
    """Under a cap, so that what is new takes the place of what is old and in nobody's use."""
    with opened(home) as (store, index):
        index.set_head("talk", TALK_ROOT, "")
        write_cap(store.path, CAP_BYTES)
        say("capped")
        with closing(Room(store, lambda: index)):
            store.put_many(NEW)
            say("new")
            store.put_many(LATER)
            say("later")


DAMAGED = frozenset([OLD[3][0], next(cid for cid in TALK_BLOCKS if cid.codec == "raw")])
"""A leaf that nobody needs, and one of the conversation."""


def damage(home: Path) -> None:
    with opened(home) as (store, index):
        index.set_head("talk", TALK_ROOT, "")
        publish_car(TALK, plan_publish(TALK, index, TALK_ROOT, "public"), home / "source.car")
        for cid in DAMAGED:
            flip(store, cid)


def mend(home: Path, say: Say) -> None:
    with opened(home) as (store, index):
        repair(store, index, list(fsck(store, index)), [str(home / "source.car")])
        say("mended")


@dataclass(frozen=True)
class Scenario:
    """`prepare` has run on the home; `work` runs in another process and may stop anywhere."""

    work: Callable[[Path, Say], None]
    check: Callable[[Store, Index, list[object]], None]
    """Checks what was said, and that what was not said is there whole or not at all."""
    fresh: bool = False
    """Start with no home at all."""
    gone: frozenset[Cid] = frozenset()
    """Old blocks that the work may take away."""
    alone: bool = False
    """Needs to be the only one that has the store open."""
    before: Callable[[Path], None] | None = None
    """Done to the home first."""
    damaged: frozenset[Cid] = frozenset()
    """Blocks that are damaged, or absent, until the work is done."""


@dataclass(frozen=True)
class Stubborn:
    """Does a work that may fail, says how it failed, and does it again, all in one process."""

    work: Callable[[Path, Say], None]
    keep_open: bool
    """Keep the home open from before the first attempt until after the second, as a server would."""
    attempts: int = 2

    def __call__(self, home: Path, say: Say) -> None:
        with opened(home) if self.keep_open else nullcontext():
            if self.attempts == 0:
                return
            try:
                self.work(home, say)
            except CyberKVError as error:
                say((error.kind, bool(error.hint)))
            except Exception:  # whatever it is, the test has to hear of it
                say(traceback.format_exc())
            if self.attempts == 2:
                say("again")
                self.work(home, say)


def _check_write(store: Store, _: Index, said: list[object]) -> None:
    for word, batch in (("new", NEW), ("later", LATER)):
        absent = store.missing(cid for cid, _ in batch)
        assert not absent if word in said else len(absent) in (0, len(batch))
        assert all(store.get(cid) == data for cid, data in batch if cid not in absent)


def _check_delete(store: Store, _: Index, said: list[object]) -> None:
    here = [store.has(cid) for cid, _ in OLD[1:5]]
    assert len(set(here)) == 1
    assert not ("deleted" in said and any(here))
    assert "later" not in said or all(store.get(cid) == data for cid, data in LATER)


def _check_bring(store: Store, index: Index, said: list[object]) -> None:
    source, root = conversation(blocks=5, seed="b")
    whole = store.has(root)
    assert whole or "fetched" not in said
    if whole:  # a root in a store means a whole conversation
        assert chain.missing(store, root) == []
        assert contents(store, root) == contents(source, root)
    assert [head.root for head in index.heads()] == [root] or "named" not in said


def _check_mark(store: Store, index: Index, said: list[object]) -> None:
    entries = _entries(store)
    found = index.lookup_chain((entry.prefix for entry in entries), "own")
    assert len(found) in ((6,) if "indexed" in said else (0, 6))
    assert index.log("talk")[-1].root == TALK_ROOT if "named" in said else True
    public = [index.is_public(cid) for cid in TALK_BLOCKS]
    assert all(public) if "published" in said else len(set(public)) == 1
    assert set(public) == {bool(index.published())}


def _check_collected(store: Store, _: Index, said: list[object]) -> None:
    here = [store.has(cid) for cid, _ in OLD[1:]]
    assert len(set(here)) == 1
    assert not ("collected" in said and any(here))


def _check_evicted(store: Store, index: Index, said: list[object]) -> None:
    _check_write(store, index, said)
    assert isinstance(store, DiskStore)
    if "new" in said:
        assert store.used_bytes() <= CAP_BYTES
        assert store.missing(cid for cid, _ in OLD[1:])


def _nothing_more(*_: object) -> None:
    pass


SCENARIOS = {
    "create": Scenario(write, _check_write, fresh=True),
    "write": Scenario(write, _check_write),
    "delete": Scenario(delete, _check_delete, gone=frozenset(cid for cid, _ in OLD[1:5])),
    "fetch": Scenario(bring, _check_bring),
    "index": Scenario(mark, _check_mark),
    "export": Scenario(export, _nothing_more),
    "gc": Scenario(collect_garbage, _check_collected, alone=True, gone=frozenset(cid for cid, _ in OLD)),
    "evict": Scenario(evict, _check_evicted, alone=True, gone=frozenset(cid for cid, _ in OLD)),
    "repair": Scenario(mend, _nothing_more, before=damage, damaged=DAMAGED, gone=frozenset([OLD[3][0]])),
}


def check(home: Path, scenario: Scenario, said: list[object]) -> None:
    """Check a home wherever its work stopped: nothing acknowledged is lost, nothing wrong is served, all is sound."""
    with opened(home) as (store, index):
        listed = list(store.cids())
        assert len(listed) == len(set(listed))
        damaged = frozenset() if "mended" in said else scenario.damaged
        found = {cid: store.get(cid) for cid in listed if cid not in damaged}  # verified
        known = {} if scenario.fresh else dict(OLD[1:]) | TALK_BLOCKS
        assert all(found.get(cid) == data for cid, data in known.items() if cid not in scenario.gone | damaged)
        scenario.check(store, index, said)
        assert {each.cid for each in fsck(store, index)} <= damaged
    if (car := home / "talk.car").exists():
        with CarFilePeer(car) as peer:
            assert dict(peer.get_many(list(TALK_BLOCKS))) == TALK_BLOCKS
    else:
        assert "exported" not in said


def state(home: Path) -> tuple[set[Cid], object, object]:
    """What a home holds, so that an interrupted work that was done again can be compared with one that was not."""
    with opened(home) as (store, index):
        return set(store.cids()), sorted(index.entries()), index.heads()
