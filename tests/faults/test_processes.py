"""Several processes at one store: writers beside writers, readers beside deletions and gc, a copy made meanwhile."""

import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import BlockNotFound, Corrupt, DigestMismatch, Refused
from cyberkv.cybergraph.keeping.fsck import fsck
from cyberkv.cybergraph.keeping.gc import collect
from cyberkv.cybergraph.store import DiskStore
from tests.contracts.disk import flip
from tests.contracts.synthetic import blocks
from tests.faults.conftest import MakeHome
from tests.faults.scenarios import OLD, SCENARIOS, TALK, TALK_ROOT, Say, opened
from tests.faults.syscalls import KILL, at, run
from tests.wire.synthetic import contents

ROUNDS = 40
FIRST, SECOND = blocks(24)[12:18], blocks(24)[18:]
"""They take the same slots in turns."""
DONE = "done"


def take_turns(home: Path, say: Say) -> None:
    """Put one set of blocks in the place of another, again and again."""
    with DiskStore(home / "store") as store:
        for number in range(ROUNDS):
            come, go = (FIRST, SECOND) if number % 2 else (SECOND, FIRST)
            store.delete_many(cid for cid, _ in go)
            store.put_many(come)
    (home / DONE).touch()
    say("done")


@dataclass(frozen=True)
class ReadOn:
    """Reads until the others are done; says what was found as often as it was."""

    name: str
    kept: list[tuple[Cid, bytes]]
    """Blocks that have to be here all the time."""

    def __call__(self, home: Path, say: Say) -> None:
        seen = {"right": 0, "absent": 0, "bulk": 0, "no bulk": 0}
        everything = [*FIRST, *SECOND]
        with DiskStore(home / "store", read_only=True) as store:
            last = False
            while not last:
                last = (home / DONE).exists()
                for cid, data in everything:
                    try:
                        assert store.get(cid) == data
                        seen["right"] += 1
                    except BlockNotFound:
                        seen["absent"] += 1
                for batch in (FIRST, SECOND):
                    out = [bytearray(len(data)) for _, data in batch]
                    try:
                        store.get_into([cid for cid, _ in batch], [memoryview(each) for each in out])
                        assert out == [data for _, data in batch]
                        seen["bulk"] += 1
                    except BlockNotFound:
                        seen["no bulk"] += 1
                assert all(store.get(cid) == data for cid, data in self.kept)
                end_pass(home, self.name)
        say(seen)


def end_pass(home: Path, name: str) -> None:
    with (home / name).open("ab") as file:
        file.write(b".")


def await_passes(home: Path, names: Sequence[str]) -> None:
    """Wait until each of the others has begun and ended a pass after this call."""
    before = [_passes(home, name) for name in names]
    while any(_passes(home, name) < count + 2 for name, count in zip(names, before, strict=True)):
        time.sleep(0.002)


def _passes(home: Path, name: str) -> int:
    return (home / name).stat().st_size if (home / name).exists() else 0


def test_readers_beside_slots_that_are_used_again(make_home: MakeHome) -> None:
    home = make_home(SCENARIOS["write"])
    with ThreadPoolExecutor() as pool:
        reading = [pool.submit(run, ReadOn(f"reader {number}", OLD[1:]), home) for number in range(2)]
        writing = pool.submit(run, take_turns, home)
        assert writing.result().said == ["done"]
        for each in reading:
            ended = each.result()
            assert ended.exit_code == 0  # a leaf is here, whole, or it is not: never damaged, never another
            assert ended.said[0]["right"]
            assert ended.said[0]["absent"]
    with opened(home) as (store, _):
        assert list(store.check()) == []


@dataclass(frozen=True)
class WriteOwn:
    """Writes blocks of its own, one after the other, and some that the others write too.

    A block costs it five calls at least, so ten of them outlast every kill below, whatever the others have written.
    """

    number: int

    def __call__(self, home: Path, say: Say) -> None:
        with DiskStore(home / "store") as store:
            for own, shared in zip(self.blocks(), cycle(FIRST), strict=False):
                store.put_many([own, shared])
                say(own[0])

    def blocks(self) -> list[tuple[Cid, bytes]]:
        return blocks(40 + 10 * self.number)[-10:]


@pytest.mark.parametrize("killed_at", range(8, 50, 6))
def test_a_writer_is_killed_and_another_goes_on(make_home: MakeHome, killed_at: int) -> None:
    home = make_home(SCENARIOS["write"])
    with ThreadPoolExecutor() as pool:
        doomed = pool.submit(run, WriteOwn(1), home, at(killed_at, KILL))
        other = pool.submit(run, WriteOwn(2), home)
        ended, whole = doomed.result(), other.result()
    assert ended.killed
    assert whole.exit_code == 0
    with opened(home) as (store, _):
        assert all(store.get(cid) == data for cid, data in [*WriteOwn(2).blocks(), *FIRST, *OLD[1:]])
        assert all(store.has(cid) for cid in ended.said)
        assert all(store.get(cid) == dict(WriteOwn(1).blocks()).get(cid, None) for cid in ended.said)
        assert list(store.check()) == []


GC, READERS = "gc", ("reader 1", "reader 2")


def collect_again_and_again(home: Path, say: Say) -> None:
    with opened(home) as (store, index):
        index.set_head("talk", TALK_ROOT, "")
        while not (home / DONE).exists():
            try:
                collect(store, index)
                say("collected")
            except Refused:
                say("refused")
            end_pass(home, GC)


def come_and_go(home: Path, say: Say) -> None:
    """Store blocks that nothing names yet, look at them again when all the others have had a turn, and leave."""
    for _ in range(3):
        with DiskStore(home / "store") as store:
            say(len(store.missing(cid for cid, _ in FIRST)))
            store.put_many(FIRST)
            await_passes(home, [GC, *READERS])
            assert all(store.get(cid) == data for cid, data in FIRST)
        await_passes(home, [GC])


def test_gc_beside_a_writer_and_readers(make_home: MakeHome) -> None:
    """What a writer has just stored and not named yet is not taken from it; readers see blocks come and go."""
    home = make_home(SCENARIOS["write"])
    with ThreadPoolExecutor() as pool:
        collecting = pool.submit(run, collect_again_and_again, home)
        reading = [pool.submit(run, ReadOn(name, list(contents(TALK, TALK_ROOT).items())), home) for name in READERS]
        try:
            ended = run(come_and_go, home)
        finally:
            (home / DONE).touch()
    assert (ended.exit_code, collecting.result().exit_code) == (0, 0)
    assert ended.said == [len(FIRST)] * 3  # each time, gc had taken them once the writer was gone
    assert set(collecting.result().said) == {"refused", "collected"}
    for each in reading:
        assert each.result().exit_code == 0
        assert each.result().said[0]["bulk"]
    with opened(home) as (store, _):
        assert contents(store, TALK_ROOT) == contents(TALK, TALK_ROOT)
        assert list(store.check()) == []


def inspect(home: Path, say: Say) -> None:
    """Say how many blocks of a copy are damaged. None has wrong bytes, and a check finds exactly those."""
    known = dict([*FIRST, *SECOND, *OLD[1:]])
    try:
        with opened(home) as (store, index):
            bad: set[Cid] = set()
            for cid in store.cids():
                try:
                    assert store.get(cid) == known.get(cid) or cid not in known
                except DigestMismatch:
                    bad.add(cid)
            assert {finding.cid for finding in fsck(store, index) if finding.what == "block"} == bad
            say(("bad", len(bad)))
    except Corrupt:
        say(("corrupt", 0))


@pytest.mark.parametrize("first", ["catalog", "slabs"])
def test_a_copy_made_while_the_store_is_written(make_home: MakeHome, first: str) -> None:
    """Such a copy may lack or damage what was being written. It says so, and never gives wrong bytes."""
    home = make_home(SCENARIOS["write"])
    with ThreadPoolExecutor() as pool:
        writing = pool.submit(run, take_turns, home)
        copies = 0
        while not writing.done():
            copy = home.with_name(f"copy-{copies}")
            with suppress(shutil.Error):
                for path in _in_order(home / "store", first):
                    _copy(path, copy / "store" / path.relative_to(home / "store"))
            copies += 1
        assert writing.result().exit_code == 0
    assert copies
    for number in range(min(copies, 12)):
        ended = run(inspect, home.with_name(f"copy-{number}"))
        assert ended.exit_code == 0, ended.said
    last = home.with_name("last")
    shutil.copytree(home, last)
    assert run(inspect, last).said == [("bad", 0)]  # the control: nobody was writing
    with DiskStore(last / "store") as store:
        flip(store, OLD[1][0])
    assert run(inspect, last).said == [("bad", 1)]


def _in_order(store: Path, first: str) -> Iterator[Path]:
    files = sorted(path for path in store.rglob("*") if path.is_file())
    return iter(sorted(files, key=lambda path: (path.suffix == ".kvd") != (first == "slabs")))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):  # a temporary file that is gone by now
        shutil.copyfile(source, target)
