"""The order of use does not hang on any clock: neither on the time of day nor on the times of files."""

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.keeping.room import Room, write_cap
from cyberkv.cybergraph.store import DiskStore
from tests.contracts.synthetic import blocks
from tests.wire.synthetic import MODEL

OLD, NEW = blocks(80)[:40], blocks(80)[40:]
SLOT_BYTES = 8192


def survivors(
    path: Path, used: Sequence[int], *, file_time_s: float | None = None, clock: bytes | None = None
) -> set[int]:
    """Store old leaves, use some of them, start anew, and say which are left after half of them had to go."""
    with Index(path / "index") as index:
        with DiskStore(path / "store") as store, closing(Room(store, lambda: index)):
            for each in OLD:
                store.put_many([each])
        with DiskStore(path / "store") as store, closing(Room(store, lambda: index)):
            for number in used:
                store.get(OLD[number][0])
        for file in path.rglob("*"):
            if file_time_s is not None:
                os.utime(file, (file_time_s, file_time_s))
        if clock is not None:
            (path / "store/clock").write_bytes(clock)
        with DiskStore(path / "store") as store, closing(Room(store, lambda: index)):
            cap_bytes = store.used_bytes() + len(OLD) // 2 * SLOT_BYTES
            write_cap(store.path, cap_bytes)
            store.put_many(NEW)
            assert store.used_bytes() <= cap_bytes
            assert store.missing(cid for cid, _ in NEW) == []
            return {number for number, (cid, _) in enumerate(OLD) if store.has(cid)}


def test_what_was_used_last_stays(tmp_path: Path) -> None:
    early, late = range(20), range(20, 40)
    assert survivors(tmp_path / "a", early) == set(early)
    assert survivors(tmp_path / "b", late) == set(late)  # the control: another order of use, other leaves


@pytest.mark.parametrize("file_time_s", [0, 4_000_000_000])
def test_files_of_another_time(tmp_path: Path, file_time_s: float) -> None:
    assert survivors(tmp_path, range(20), file_time_s=file_time_s) == set(range(20))


@pytest.mark.parametrize(
    "clock",
    [
        b"",
        bytes(5000),
        b"cyberkv clock 1\n" + b"\xff" * 100,
        b"cyberkv clock 1\n\1",
        b"cyberkv clock 1\n" + bytes(7) + b"\xff" * 99,
    ],
)
def test_a_damaged_record_of_use_costs_the_order_alone(tmp_path: Path, clock: bytes) -> None:
    survivors(tmp_path, range(20), clock=clock)  # room was made, and the new leaves are here


def test_the_newest_root_is_the_one_that_was_set_last(tmp_path: Path) -> None:
    first, second = MODEL.cid(), OLD[0][0]
    with Index(tmp_path / "index") as index:
        index.set_head("talk", first, "2030-01-01T00:00:00Z")
        index.set_head("talk", second, "1970-01-01T00:00:00Z")  # the clock went back in between
        assert index.head("talk").root == second
        assert [head.root for head in index.log("talk")] == [first, second]
        assert list(index.check()) == []
