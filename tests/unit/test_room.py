"""A cap that holds: across restarts, against what is in use, and beside other processes."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from cyberkv.cybergraph import chain
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import CyberKVError, TierFull, UnsupportedFormat
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.keeping.clock import FLUSH_TICKS, Clock
from cyberkv.cybergraph.keeping.room import FILE_NAME, MAX_CAP_BYTES, Room, read_cap, write_cap
from cyberkv.cybergraph.store import DiskStore
from cyberkv.cybergraph.store.catalog import Place
from cyberkv.cybergraph.store.lock import WriterLock
from cyberkv.cybergraph.store.slab import SlabId
from tests.contracts.disk import flip, in_child
from tests.contracts.other import other
from tests.contracts.synthetic import leaf, make_conversation

SLOT_BYTES = 4096


def leaves(*numbers: int) -> list[tuple[Cid, bytes]]:
    return [leaf(b"leaf %d" % number) for number in numbers]


def here(store: DiskStore, numbers: range) -> list[int]:
    listed = set(store.cids())  # listing is no use, and asking one by one would be
    return [number for number in numbers if leaves(number)[0][0] in listed]


def fill(home: Path, *numbers: int) -> int:
    """Store leaves one call each, so that each has a tick of its own; give the bytes in use."""
    with DiskStore(home / "store") as store, Index(home / "index") as index, closing(Room(store, lambda: index)):
        for number in numbers:
            store.put_many(leaves(number))
        return store.used_bytes()


def test_the_longest_unused_go_first_across_restarts(home: Path) -> None:
    used_bytes = fill(home, *range(4))
    write_cap(home / "store", used_bytes)
    with DiskStore(home / "store") as store, Index(home / "index") as index, closing(Room(store, lambda: index)):
        store.get(leaves(0)[0][0])  # used in a second life
    with DiskStore(home / "store") as store, Index(home / "index") as index, closing(Room(store, lambda: index)):
        store.put_many(leaves(4))
        assert store.used_bytes() == used_bytes
    with DiskStore(home / "store", read_only=True) as store:
        assert here(store, range(5)) == [0, 2, 3, 4]


def test_without_a_cap_nothing_goes(home: Path) -> None:
    used_bytes = fill(home, *range(4))
    assert read_cap(home / "store") is None
    assert fill(home, 4) == used_bytes + SLOT_BYTES
    write_cap(home / "store", used_bytes)
    write_cap(home / "store", None)
    assert fill(home, 5) == used_bytes + 2 * SLOT_BYTES


def test_what_this_run_has_met_stays(home: Path) -> None:
    used_bytes = fill(home, *range(3))
    write_cap(home / "store", used_bytes)
    with DiskStore(home / "store") as store, Index(home / "index") as index, closing(Room(store, lambda: index)):
        assert store.has(leaves(0)[0][0])  # as a fetch asks, and then counts on it
        store.put_many(leaves(1))  # is here: nothing is written, and it is counted on
        store.put_many(leaves(3))
        assert here(store, range(4)) == [0, 1, 3]
        with pytest.raises(TierFull) as caught:
            store.put_many(leaves(4))
        assert here(store, range(5)) == [0, 1, 3]
    assert (caught.value.exit_code, caught.value.data["cap_bytes"]) == (8, used_bytes)
    assert "gc --cap" in caught.value.hint


def test_the_cap_holds_in_another_process(home: Path) -> None:
    used_bytes = fill(home, *range(4))
    write_cap(home / "store", used_bytes)
    code = """
        with DiskStore(home / "store") as store, Index(home / "index") as index, closing(Room(store, lambda: index)):
            for number in range(10, 30):
                try:
                    store.put_many([leaf(b"leaf %d" % number)])
                except CyberKVError as error:
                    assert error.kind == "full", error
            assert store.used_bytes() <= int((home / "store" / "CAP").read_text())
        wait("done")
    """
    with other(code, home) as process:
        process.says("done")
        process.ends()
    with DiskStore(home / "store") as store:
        assert store.used_bytes() == used_bytes
        assert len(list(store.cids())) == 4
        assert here(store, range(4)) == []  # all four were nobody's
        assert here(store, range(10, 14)) == [10, 11, 12, 13]  # and these had been met


def test_nothing_is_evicted_while_another_process_writes(home: Path) -> None:
    used_bytes = fill(home, 0, 1)
    write_cap(home / "store", used_bytes)
    code = """
        with DiskStore(home / "store") as store:
            assert store.has(leaf(b"leaf 0")[0])
            wait("counts on it")
    """
    with other(code, home) as process:
        process.says("counts on it")
        with DiskStore(home / "store") as store, Index(home / "index") as index, closing(Room(store, lambda: index)):
            with pytest.raises(TierFull, match="another process"):
                store.put_many(leaves(2))
            process.ends()
            store.put_many(leaves(2))  # the control: alone, there is room
        with DiskStore(home / "store") as store:
            assert here(store, range(3)) == [1, 2] or here(store, range(3)) == [0, 2]


def test_a_root_that_another_process_made_meanwhile_counts(home: Path) -> None:
    """The list of what may go is made once; it is made anew after another writer came and went."""
    used_bytes = fill(home, *range(4))
    with (
        DiskStore(home / "store") as store,
        Index(home / "index") as index,
        closing(Room(store, lambda: index)) as room,
    ):
        room.fit(used_bytes - SLOT_BYTES)
        code = """
            with DiskStore(home / "store") as store, Index(home / "index") as index:
                root = make_conversation(store, range(9), title="theirs")
                index.set_head("theirs", root, "")
            wait("done")
        """
        with other(code, home) as process:
            process.says("done")
            process.ends()
        with pytest.raises(TierFull):
            room.fit(0)
        room.fit(store.used_bytes() - 3 * SLOT_BYTES)
        assert here(store, range(4)) == []
        assert chain.missing(store, index.head("theirs").root) == []


def test_a_root_put_to_use_meanwhile_counts(home: Path) -> None:
    fill(home, *range(9))
    with DiskStore(home / "store") as store, Index(home / "index") as index, closing(Room(store, lambda: index)):
        mine, theirs = make_conversation(store, range(23)), make_conversation(store, range(50, 73))
        index.set_head("theirs", theirs, "")
        index.add_sources(theirs, ["http://127.0.0.1:1"])
    with (
        DiskStore(home / "store") as store,
        Index(home / "index") as index,
        closing(Room(store, lambda: index)) as room,
    ):
        room.fit(store.used_bytes() - 1)  # the list of what may go is made
        assert 0 < len(here(store, range(9))) < 9
        index.set_head("mine", mine, "")
        index.pin(theirs, "")
        while here(store, range(9)):
            room.fit(store.used_bytes() - 1)
        with pytest.raises(TierFull):
            room.fit(store.used_bytes() - 1)
        assert chain.missing(store, mine, theirs) == []


def test_a_damaged_page_table_evicts_nothing(home: Path) -> None:
    with DiskStore(home / "store") as store, Index(home / "index") as index:
        root = make_conversation(store, range(9))
        index.set_head("talk", root, "")
        store.put_many(leaves(0))
        flip(store, chain.load_root(store, root).segments[0])
        before = set(store.cids())
        with closing(Room(store, lambda: index)) as room, pytest.raises(TierFull, match="do not hash"):
            room.fit(0)
        assert set(store.cids()) == before


@pytest.mark.parametrize("text", ["", "-1", "many", "1e9", "٣", str(1 << 63), "9" * 400])
def test_a_cap_that_is_no_number_is_refused(home: Path, text: str) -> None:
    fill(home, 0)
    (home / "store" / FILE_NAME).write_text(text)
    with pytest.raises(UnsupportedFormat, match="not a number"):
        read_cap(home / "store")


def test_the_highest_cap_is_read_as_it_was_written(home: Path) -> None:
    fill(home, 0)
    for cap_bytes in (MAX_CAP_BYTES, (1 << 53) + 1, 0):
        write_cap(home / "store", cap_bytes)
        assert read_cap(home / "store") == cap_bytes


def test_a_pipe_keeps_nobody_waiting(home: Path) -> None:
    fill(home, 0)
    for name in (FILE_NAME, "clock"):
        (home / "store" / name).unlink(missing_ok=True)
        os.mkfifo(home / "store" / name)
    with pytest.raises(CyberKVError, match="not a regular file"):
        read_cap(home / "store")
    assert Clock(home / "store" / "clock").now == 0
    write_cap(home / "store", 4096)  # puts a file in its place
    assert read_cap(home / "store") == 4096


def test_a_damaged_count_of_writers_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "WRITERS").write_bytes(b"\xff" * 8)
    first = WriterLock(tmp_path)
    second = WriterLock(tmp_path)
    assert (first.joined, second.joined) == (1, 1)
    second.close()
    first.close()


def test_writers_share_and_one_may_be_alone(tmp_path: Path) -> None:
    first, second = WriterLock(tmp_path), WriterLock(tmp_path)
    joined = first.joined
    with first.alone() as alone:
        assert not alone
    second.close()
    second.close()
    with first.alone() as alone:
        assert alone
    third = WriterLock(tmp_path)  # the lock is shared again
    assert first.joined == joined + 1
    third.close()
    first.close()


def test_threads_together_stay_within_the_cap(home: Path) -> None:
    used_bytes = fill(home, *range(40))
    write_cap(home / "store", used_bytes)
    with DiskStore(home / "store") as store, Index(home / "index") as index, closing(Room(store, lambda: index)):

        def put(number: int) -> int:
            store.put_many(leaves(number))
            return store.used_bytes()

        with ThreadPoolExecutor(8) as pool:
            assert max(pool.map(put, range(100, 130))) <= used_bytes
        assert here(store, range(100, 130)) == list(range(100, 130))


def test_a_killed_writer_holds_nothing_back(home: Path) -> None:
    with other("""store = DiskStore(home / "store"); wait("open")""", home) as process:
        process.says("open")
        with DiskStore(home / "store") as store, store.writers.alone() as alone:
            assert not alone
        process.process.kill()
        process.process.wait()
        with DiskStore(home / "store") as store, store.writers.alone() as alone:
            assert alone


def places(*slots: int) -> list[Place]:
    return [Place(SlabId(4, 0), slot, 10) for slot in slots]


def test_ticks_come_back_and_the_later_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "clock"
    one, two = Clock(path), Clock(path)
    one.touch(places(0, 1))
    two.touch(places(5))
    two.touch(places(1))
    one.save()
    two.save()
    again = Clock(path)
    assert [again.tick(place) for place in places(0, 1, 5, 9)] == [1, 2, 1, 0]
    assert again.opened == again.now == 2


def test_ticks_are_written_now_and_then(tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock")
    for _ in range(FLUSH_TICKS - 1):
        clock.touch(places(0))
    assert not (tmp_path / "clock").exists()
    clock.touch(places(0))
    assert Clock(tmp_path / "clock").tick(places(0)[0]) == FLUSH_TICKS


@pytest.mark.parametrize("spoil", [lambda data: b"", lambda data: b"x" * 40, lambda data: data[:-3]])
def test_a_spoilt_clock_is_as_good_as_none(tmp_path: Path, spoil: object) -> None:
    path = tmp_path / "clock"
    clock = Clock(path)
    clock.touch(places(2))
    clock.save()
    assert Clock(path).tick(places(2)[0]) == 1  # the control
    assert callable(spoil)
    path.write_bytes(spoil(path.read_bytes()))
    assert Clock(path).tick(places(2)[0]) == 0


@pytest.mark.parametrize(("step", "gone"), [("removing", []), ("removed", [0]), ("synced", [0]), ("committed", [0])])
def test_a_kill_at_each_step_of_an_eviction(home: Path, step: str, gone: list[int]) -> None:
    used_bytes = fill(home, *range(4))
    write_cap(home / "store", used_bytes)
    child = in_child(
        """
        from contextlib import closing
        from cyberkv.cybergraph.index import Index
        from cyberkv.cybergraph.keeping.room import Room
        from tests.contracts.synthetic import leaf
        def on_step(step):
            if step == args[0]:
                os.kill(os.getpid(), signal.SIGKILL)
        store = DiskStore(path / "store", on_step=on_step)
        with Index(path / "index") as index, closing(Room(store, lambda: index)):
            store.put_many([leaf(b"leaf 9")])
        """,
        home, step,
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL, child.stderr
    with DiskStore(home / "store") as store, Index(home / "index") as index, closing(Room(store, lambda: index)):
        assert [number for number in range(4) if number not in here(store, range(4))] == gone
        assert here(store, range(9, 10)) == ([9] if step == "committed" else [])
        assert store.used_bytes() <= used_bytes
        assert list(store.check()) == []
        store.put_many(leaves(9))
        assert store.used_bytes() == used_bytes


def test_a_damaged_entry_costs_no_memory() -> None:
    clock = Clock(None)
    wrong = [Place(SlabId(4, 0), 1 << 31, 10), Place(SlabId(0, 0), 0, 10)]
    clock.touch([*wrong, *places(3)])
    assert [clock.tick(place) for place in (*wrong, *places(3))] == [0, 0, 1]


def test_ticks_that_cannot_be_written_stop_nothing(home: Path) -> None:
    fill(home, 0)
    (home / "store" / "clock").unlink()
    (home / "store" / "clock").mkdir()  # nothing can take its place
    (home / "store" / "clock" / "x").touch()
    assert fill(home, 1) > 0
