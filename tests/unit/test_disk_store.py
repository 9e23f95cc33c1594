"""The disk store beyond the contract: what survives, what is refused, what heals."""

import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.database import Database
from cyberkv.cybergraph.errors import (
    BlockNotFound,
    Corrupt,
    CyberKVError,
    DigestMismatch,
    NotFound,
    Refused,
    UnsupportedFormat,
)
from cyberkv.cybergraph.store import DiskStore, Store, batches, slab
from cyberkv.cybergraph.store.catalog import places
from cyberkv.cybergraph.store.format import FORMAT
from tests.contracts.disk import flip
from tests.contracts.store import StoreContract
from tests.contracts.synthetic import blocks, make_model


class TestDiskStore(StoreContract):
    @pytest.fixture
    def store(self, disk_path: Path) -> Iterator[Store]:
        with self.make(disk_path / "store") as store:
            yield store

    def make(self, path: Path) -> Store:
        return DiskStore(path)

    def damage(self, store: Store, cid: Cid) -> None:
        assert isinstance(store, DiskStore)
        flip(store, cid)


class TestThroughThePageCache(TestDiskStore):
    """Where the file system takes no O_DIRECT."""

    def make(self, path: Path) -> Store:
        store = DiskStore(path)
        store._slabs.direct = False
        return store


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
    monkeypatch.setattr(batches, "BATCH_BYTES", 40_000)
    monkeypatch.setattr(batches, "BATCH_BLOCKS", 5)
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
        sizes = [len(data) for _, data in made]
        assert [store.size_bytes(cid) for cid, _ in made] == [sizes[0], None, sizes[2]]
        assert store.put_many(made) == 1
        assert [store.size_bytes(cid) for cid, _ in made] == sizes
        assert [store.get(cid) for cid, _ in made] == [data for _, data in made]
        assert list(store.check()) == []


@pytest.mark.parametrize(("harm", "reason"), [("cut", "cut short"), ("remove", "missing"), ("flip", "do not hash")])
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


class Interrupted:
    """Slab files between whose lookup and first read another process does something."""

    def __init__(self, store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.meanwhile: list[Callable[[], object]] = []
        for name in ("read_bytes", "read_into"):
            monkeypatch.setattr(store._slabs, name, partial(self.read, getattr(store._slabs, name)))

    def read(self, really: Callable[..., object], *args: object, **options: object) -> object:
        while self.meanwhile:
            self.meanwhile.pop()()
        return really(*args, **options)


def test_a_reader_that_meets_a_reused_slot_looks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = blocks(3)
    with DiskStore(tmp_path) as store:
        store.put_many([first])
        between = Interrupted(store, monkeypatch)

        def reuse() -> None:
            store.delete_many([first[0]])
            store.put_many([second])

        between.meanwhile.append(reuse)
        with pytest.raises(BlockNotFound):
            store.get(first[0])
        assert store.get(second[0]) == second[1]

        def move() -> None:
            store.delete_many([second[0]])
            store.put_many([third, second])

        between.meanwhile.append(move)
        target = bytearray(len(second[1]))
        store.get_into([second[0]], [memoryview(target)])
        assert target == second[1]
        assert not between.meanwhile
        assert store.has(second[0])  # none of this counts as damage


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("hello")
    with pytest.raises(UnsupportedFormat, match=r"letter\.txt"):
        DiskStore(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    with pytest.raises(UnsupportedFormat):
        DiskStore(tmp_path / "letter.txt")


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    DiskStore(tmp_path).close()
    (tmp_path / "FORMAT").write_text("cyberkv store 3\n")
    for read_only in (True, False):
        with pytest.raises(UnsupportedFormat, match="store 3") as caught:
            DiskStore(tmp_path, read_only=read_only)
        assert caught.value.hint
    (tmp_path / "FORMAT").write_text(FORMAT)
    DiskStore(tmp_path).close()


def test_a_store_of_version_1_is_read_and_then_brought_to_this_version(tmp_path: Path) -> None:
    made = blocks(6)
    with DiskStore(tmp_path) as store:
        store.put_many(made[:4])
        store.delete_many([made[1][0]])
    # Version 1 had two more tables, its list of free slots, and no stamp.
    with Database(tmp_path / "catalog", tables={"leaves": False, "stamp": False, "slabs": False, "free": False},
                  read_only=False) as database:  # fmt: skip
        database.write(lambda txn: txn.drop(database["stamp"]))
        database.write(lambda txn: txn.put(struct.pack(">III", 8, 0, 2), b"", db=database["free"]))  # outdated: in use
    (tmp_path / "FORMAT").write_text("cyberkv store 1\n")
    with DiskStore(tmp_path, read_only=True) as store:
        assert [store.get(cid) for cid, _ in made[2:4]] == [data for _, data in made[2:4]]
        assert store.used_bytes() == 3 * 8192
    assert (tmp_path / "FORMAT").read_text() == "cyberkv store 1\n"  # a reader changes nothing
    with DiskStore(tmp_path) as store:
        assert (tmp_path / "FORMAT").read_text() == FORMAT == "cyberkv store 2\n"
        store.put_many(made[4:])
        assert [place and place.slot for place in store.places(cid for cid, _ in made[4:])] == [1, 4]
        assert [store.get(cid) for cid, _ in made[2:]] == [data for _, data in made[2:]]
        assert list(store.check()) == []


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
        two.close()
        assert one.get(other) == more


def test_layout_checks_find_slots_given_twice_and_out_of_bounds(tmp_path: Path) -> None:
    made = blocks(4)
    with DiskStore(tmp_path) as store:
        store.put_many(made)
        assert list(store.check()) == []
        lying = dict(store.leaves())
        twice = lying[made[0][0]]._replace(slot=1)
        outside = lying[made[2][0]]._replace(slot=1 << 30)
        behind = lying[made[3][0]]._replace(slot=99)

        def spoil(txn: object) -> None:
            for (cid, _), place in ((made[0], twice), (made[2], outside), (made[3], behind)):
                store._catalog.put_leaf(txn, cid, place)

        store._database.write(spoil)
        found = {(finding.cid, finding.what): finding.reason for finding in store.check()}
    cids = {cid for cid, what in found if what == "slot"}
    assert cids & {made[0][0], made[1][0]}
    assert made[2][0] in cids
    assert "819200 are in use" in found[None, "slab"]
    with DiskStore(tmp_path) as store:  # a damaged row neither stops writing nor makes a slot be given twice
        assert store.put_many(blocks(8)[4:]) == 4
        where = [(place.slab.number, place.slot) for place in store.places(cid for cid, _ in blocks(8)[4:]) if place]
        assert sorted(where) == [(1, slot) for slot in range(4)]  # by its rows, the first slab lost leaves


def test_errors_of_the_disk_are_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    made = blocks(1)
    with DiskStore(tmp_path) as store:
        store.put_many(made)
        monkeypatch.setattr(slab.os, "pread", fail)
        with pytest.raises(DigestMismatch):
            store.get(made[0][0])
        monkeypatch.setattr(slab.os, "pwritev", fail)
        with pytest.raises(CyberKVError, match="Input/output"):
            store.put_many(blocks(2))
