"""The disk store beyond the contract: what survives, what is refused, what heals."""

import resource
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import (
    BlockNotFound,
    Corrupt,
    CyberKVError,
    DigestMismatch,
    NotFound,
    Refused,
    TierFull,
    UnsupportedFormat,
)
from cyberkv.cybergraph.store import DiskStore, Store, disk, slab
from cyberkv.cybergraph.store.catalog import places
from tests.contracts.store import StoreContract, blocks
from tests.contracts.synthetic import make_model

STEPS = ["opened", "allocated", "written", "synced", "catalogued", "committed"]


def flip(store: DiskStore, cid: Cid, *, at: int = 0) -> None:
    """Flip one bit of a stored block, on disk."""
    if cid.codec == "raw":
        place = dict(places(store._database))[cid]
        with (store._path / place.slab.file_name).open("r+b") as file:
            file.seek(place.offset + at)
            byte = file.read(1)[0]
            file.seek(place.offset + at)
            file.write(bytes([byte ^ 1]))
    else:
        data = bytearray(store.get(cid))
        data[at] ^= 1
        store._database.write(lambda txn: store._catalog.put_node(txn, cid, bytes(data)))


def in_child(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Run code in another process; `path` is the first argument."""
    header = """
        import os, resource, signal, sys
        from pathlib import Path
        from cyberkv.cybergraph.store import DiskStore
        from tests.contracts.store import blocks
        from tests.contracts.synthetic import make_model
        path, args = Path(sys.argv[1]), sys.argv[2:]
    """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(header) + textwrap.dedent(code), *map(str, args)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


class TestDiskStore(StoreContract):
    def make(self, path: Path) -> Store:
        return DiskStore(path)

    def damage(self, store: Store, cid: Cid) -> None:
        assert isinstance(store, DiskStore)
        flip(store, cid)


def test_blocks_survive_closing(tmp_path: Path) -> None:
    made = blocks(20)
    with DiskStore(tmp_path) as store:
        store.put_many(made)
        model = store.put_node(make_model())
    with DiskStore(tmp_path, read_only=True) as store:
        assert [store.get(cid) for cid, _ in made] == [data for _, data in made]
        assert store.get(model) == make_model().encode()
        with pytest.raises(Refused):
            store.put_many(made)
        with pytest.raises(Refused):
            store.delete_many([model])
        assert store.has(model)


def test_leaves_written_in_order_lie_side_by_side(tmp_path: Path) -> None:
    made = blocks(50)
    with DiskStore(tmp_path) as store:
        store.put_many(made)
        lying = dict(places(store._database))
    assert [lying[cid].slot for cid, _ in made] == list(range(50))
    assert {lying[cid].slab.file_name for cid, _ in made} == {"slab-8-0.kvd"}
    raw = (tmp_path / "slab-8-0.kvd").read_bytes()
    assert raw[8192:].startswith(made[1][1] + bytes(8192 - len(made[1][1])))  # payload, zeros, nothing else


def test_freed_slots_are_used_again_by_later_writes(tmp_path: Path) -> None:
    made = blocks(20)
    with DiskStore(tmp_path) as store:
        store.put_many(made[:10])
        store.delete_many(cid for cid, _ in made[2:5])
        size_bytes = (tmp_path / "slab-8-0.kvd").stat().st_size
        store.put_many(made[10:14])
        lying = dict(places(store._database))
        assert [lying[cid].slot for cid, _ in made[10:14]] == [2, 3, 4, 10]
        assert list(store.check()) == []
        for cid, data in made[:2] + made[5:14]:
            assert store.get(cid) == data
        store.put_many(made[14:])
        assert (tmp_path / "slab-8-0.kvd").stat().st_size >= size_bytes


def test_slabs_fill_and_the_next_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slab, "SLAB_BYTES", 10 * 8192)
    made = blocks(35)
    with DiskStore(tmp_path) as store:
        store.put_many(made[:7])
        store.put_many(made[7:])
        assert [store.get(cid) for cid, _ in made] == [data for _, data in made]
        rows = [bytearray(len(data)) for _, data in made]
        store.get_into([cid for cid, _ in made], [memoryview(row) for row in rows])
        assert rows == [data for _, data in made]
        assert list(store.check()) == []
    names = sorted(path.name for path in tmp_path.glob("*.kvd"))
    assert names == [f"slab-8-{number}.kvd" for number in range(4)]


def test_a_generator_is_written_in_bounded_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "BATCH_BYTES", 40_000)
    monkeypatch.setattr(disk, "BATCH_BLOCKS", 5)
    steps: list[str] = []
    with DiskStore(tmp_path, on_step=steps.append) as store:
        assert store.put_many(iter(blocks(12, 8000))) == 12
        assert steps.count("committed") == 3  # 5, 5, 2
        steps.clear()
        assert store.put_many(iter(blocks(30, 20_000))) == 30
        assert steps.count("committed") == 15  # 2 each


def test_short_writes_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwritev, calls = slab.os.pwritev, []

    def short(fd: int, vectors: list[memoryview], offset: int) -> int:
        calls.append(offset)
        return pwritev(fd, [vectors[0][:999]], offset)

    monkeypatch.setattr(slab.os, "pwritev", short)
    made = blocks(4)
    with DiskStore(tmp_path) as store:
        store.put_many(made)
        assert len(calls) > len(made)
        assert [store.get(cid) for cid, _ in made] == [data for _, data in made]


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_each_step_leaves_nothing_half_visible(tmp_path: Path, step: str) -> None:
    made = blocks(8)
    with DiskStore(tmp_path) as store:
        store.put_many(made[:3])
        store.delete_many([made[0][0]])  # so that the write also takes a freed slot
    child = in_child(
        """
        seen = []
        def on_step(step):
            seen.append(step)
            if step == args[0]:
                os.kill(os.getpid(), signal.SIGKILL)
        store = DiskStore(path, on_step=on_step)
        store.put_many([(make_model().cid(), make_model().encode()), *blocks(8)])
        """,
        tmp_path, step,
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL, child.stderr
    with DiskStore(tmp_path) as store:
        acknowledged = step == "committed"
        new = [made[0], *made[3:]]
        assert [store.has(cid) for cid, _ in new] == [acknowledged] * len(new)
        assert store.has(make_model().cid()) == acknowledged
        assert len(list(store.cids())) == (9 if acknowledged else 2)
        assert [store.get(cid) for cid, _ in made[1:3]] == [data for _, data in made[1:3]]
        assert list(store.check()) == []
        # A restart heals by itself: the same write simply goes through.
        assert store.put_many(made) == (0 if acknowledged else len(new))
        assert [store.get(cid) for cid, _ in made] == [data for _, data in made]
        assert list(store.check()) == []


def test_an_error_at_each_step_leaves_nothing_visible(tmp_path: Path) -> None:
    made = blocks(3)
    for step in STEPS[:-1]:

        def fail(seen: str, step: str = step) -> None:
            if seen == step:
                raise OSError(28, "No space left on device")

        with DiskStore(tmp_path, on_step=fail) as store:
            with pytest.raises(OSError, match="No space"):
                store.put_many(made)
            assert list(store.cids()) == []
    with DiskStore(tmp_path) as store:
        assert store.put_many(made) == 3


def test_a_full_disk_is_said_and_nothing_is_half_stored(tmp_path: Path) -> None:
    child = in_child(
        """
        from cyberkv.cybergraph.errors import TierFull
        store = DiskStore(path)
        store.put_many(blocks(10))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            store.put_many(blocks(400))
        except TierFull as error:
            assert error.exit_code == 8 and error.hint
            assert len(list(store.cids())) == 10
            store.put_many(blocks(20))
            assert list(store.check()) == []
            print("full")
        """,
        tmp_path,
    )  # fmt: skip
    assert child.stdout == "full\n", child.stderr
    with DiskStore(tmp_path) as store:
        assert store.missing(cid for cid, _ in blocks(20)) == []
        assert store.put_many(blocks(400)) == 380


def test_a_full_disk_at_the_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with DiskStore(tmp_path) as store:
        monkeypatch.setattr(slab.os, "fdatasync", fail)
        with pytest.raises(TierFull):
            store.put_many(blocks(3))
        assert list(store.cids()) == []
        monkeypatch.undo()
        assert store.put_many(blocks(3)) == 3


def test_a_damaged_block_counts_as_absent_once_it_was_seen(tmp_path: Path) -> None:
    made = blocks(3)
    with DiskStore(tmp_path) as store:
        store.put_many(made)
        flip(store, made[1][0])
        for _ in range(100):  # a failed load must not wedge anything
            with pytest.raises(DigestMismatch):
                store.get(made[1][0])
        assert [store.has(cid) for cid, _ in made] == [True, False, True]
        assert store.missing(cid for cid, _ in made) == [made[1][0]]
        assert store.put_many(made) == 1
        assert [store.get(cid) for cid, _ in made] == [data for _, data in made]
        assert list(store.check()) == []


@pytest.mark.parametrize(
    ("harm", "reason"), [("cut", "cut short"), ("remove", "missing"), ("flip", "do not hash")]
)
def test_damage_is_named(tmp_path: Path, harm: str, reason: str) -> None:
    made = blocks(4)
    with DiskStore(tmp_path) as store:
        store.put_many(made)
        if harm == "flip":
            flip(store, made[3][0], at=4999)
    if harm == "cut":
        with (tmp_path / "slab-8-0.kvd").open("r+b") as file:
            file.truncate(3 * 8192 + 100)
    if harm == "remove":
        (tmp_path / "slab-8-0.kvd").unlink()
    with DiskStore(tmp_path) as store:
        with pytest.raises(DigestMismatch, match=reason) as caught:
            store.get(made[3][0])
        assert str(made[3][0]) in str(caught.value)
        out = [bytearray(len(data)) for _, data in made]
        with pytest.raises(DigestMismatch):
            store.get_into([cid for cid, _ in made], [memoryview(row) for row in out])
        assert (list(store.check()) == []) == (harm == "flip")
        if harm != "remove":
            assert store.get(made[2][0]) == made[2][1]


def test_a_reader_that_meets_a_reused_slot_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = blocks(3)
    with DiskStore(tmp_path) as store:
        store.put_many([first])
        read, reused = store._slabs.read, []

        def slow_read(*args: object) -> None:
            if not reused:  # another process deletes and writes between this reader's lookup and its read
                reused.append(1)
                store.delete_many([first[0]])
                store.put_many([second])
            read(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(store._slabs, "read", slow_read)
        with pytest.raises(BlockNotFound):
            store.get(first[0])
        assert store.get(second[0]) == second[1]

        reused.clear()

        def move(*args: object) -> None:
            if not reused:  # this time the block is stored again, in another slot
                reused.append(1)
                store.delete_many([second[0]])
                store.put_many([third, second])
            read(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(store._slabs, "read", move)
        target = bytearray(len(second[1]))
        store.get_into([second[0]], [memoryview(target)])
        assert target == second[1]


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("hello")
    with pytest.raises(UnsupportedFormat, match=r"letter\.txt"):
        DiskStore(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    with pytest.raises(UnsupportedFormat):
        DiskStore(tmp_path / "letter.txt")


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    DiskStore(tmp_path).close()
    (tmp_path / "FORMAT").write_text("cyberkv store 2\n")
    with pytest.raises(UnsupportedFormat, match="store 2"):
        DiskStore(tmp_path)
    (tmp_path / "FORMAT").write_text("cyberkv store 1\n")
    DiskStore(tmp_path).close()


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        DiskStore(tmp_path / "none", read_only=True)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("harm", ["garbage", "cut"])
def test_a_damaged_catalogue_is_said(tmp_path: Path, harm: str) -> None:
    with DiskStore(tmp_path) as store:
        store.put_many(blocks(2000, 8))
    data = tmp_path / "catalog" / "data.mdb"
    if harm == "garbage":
        data.write_bytes(b"garbage!" * 4096)
    else:
        with data.open("r+b") as file:
            file.truncate(data.stat().st_size // 2 // 4096 * 4096)
    with pytest.raises(Corrupt, match="catalog"):
        DiskStore(tmp_path)


def test_two_handles_in_one_process(tmp_path: Path) -> None:
    (cid, data), (other, more) = blocks(2)
    with DiskStore(tmp_path) as one, DiskStore(tmp_path, read_only=True) as two:
        one.put(cid, data)
        assert two.get(cid) == data
    with DiskStore(tmp_path) as one:
        two = DiskStore(tmp_path)
        two.put(other, more)
        two.close()
        assert one.get(other) == more


def test_a_store_is_not_used_across_a_fork(tmp_path: Path) -> None:
    child = in_child(
        """
        from cyberkv.cybergraph.errors import CyberKVError
        store = DiskStore(path)
        if os.fork() == 0:
            for attempt in (lambda: store.has(make_model().cid()), lambda: DiskStore(path)):
                try:
                    attempt()
                except CyberKVError as error:
                    assert "fork" in error.message
                    print("refused", flush=True)
            os._exit(0)
        os.wait()
        store.put_node(make_model())
        """,
        tmp_path,
    )  # fmt: skip
    assert child.stdout == "refused\nrefused\n", child.stderr
    assert child.returncode == 0, child.stderr


def test_processes_and_threads_write_at_once(tmp_path: Path) -> None:
    made = blocks(120)
    code = """
        store = DiskStore(path)
        part = blocks(120)[int(args[0]) :: 3]
        for at in range(0, len(part), 4):
            store.put_many(part[at : at + 4])
            store.put_many(part[:at])
    """
    children = [
        threading.Thread(target=lambda n=n: results.append(in_child(code, tmp_path, n))) for n in (0, 1)
    ]
    results: list[subprocess.CompletedProcess[str]] = []
    with DiskStore(tmp_path) as store:
        for child in children:
            child.start()
        threads = [threading.Thread(target=store.put_many, args=(made[start::6],)) for start in (2, 5)]
        for thread in [*threads, *children]:
            if thread in threads:
                thread.start()
        for thread in [*threads, *children]:
            thread.join()
        assert [(each.returncode, each.stderr) for each in results] == [(0, "")] * 2
        assert [store.get(cid) for cid, _ in made] == [data for _, data in made]
        assert len(list(store.cids())) == 120
        assert list(store.check()) == []


def test_layout_checks_find_slots_given_twice_and_out_of_bounds(tmp_path: Path) -> None:
    made = blocks(4)
    with DiskStore(tmp_path) as store:
        store.put_many(made)
        assert list(store.check()) == []
        lying = dict(places(store._database))
        twice = lying[made[0][0]]._replace(slot=1)
        outside = lying[made[2][0]]._replace(slot=99)
        free = lying[made[3][0]]

        def spoil(txn: object) -> None:
            for (cid, _), place in ((made[0], twice), (made[2], outside)):
                store._catalog.put_leaf(txn, cid, place)
            store._catalog._release(txn, free)

        store._database.write(spoil)
        found = {(finding.cid, finding.what): finding.reason for finding in store.check()}
    cids = {cid for cid, what in found if what == "slot"}
    assert cids & {made[0][0], made[1][0]}
    assert {made[2][0], made[3][0]} <= cids


def test_errors_of_the_disk_are_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    made = blocks(1)
    with DiskStore(tmp_path) as store:
        store.put_many(made)
        monkeypatch.setattr(slab.os, "preadv", fail)
        with pytest.raises(DigestMismatch):
            store.get(made[0][0])
        monkeypatch.setattr(slab.os, "pwritev", fail)
        with pytest.raises(CyberKVError, match="Input/output"):
            store.put_many(blocks(2))


def test_file_size_limit_is_per_process() -> None:
    """The limit set in a child above must not have leaked here, or the other tests prove nothing."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1 << 20
