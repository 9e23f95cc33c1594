"""The shared LMDB handle: growth, sharing, failures."""

import errno
import os
import threading
from contextlib import closing
from pathlib import Path

import lmdb
import pytest

from cyberkv.cybergraph import database, diskerrors
from cyberkv.cybergraph.database import Database, Transaction
from cyberkv.cybergraph.diskerrors import disk_error
from cyberkv.cybergraph.errors import Corrupt, CyberKVError, NotFound, TierFull

TABLES = {"one": False, "many": True}


def fill(opened: Database, count: int, size_bytes: int = 300) -> None:
    def work(txn: Transaction) -> None:
        for number in range(count):
            txn.put(number.to_bytes(4, "big"), bytes(size_bytes), db=opened["one"])

    opened.write(work)


def test_the_map_grows_under_a_write_and_under_another_handle(tmp_path: Path) -> None:
    small = Database(tmp_path, tables=TABLES, read_only=False, map_bytes=1 << 16)
    runs: list[int] = []

    def work(txn: Transaction) -> None:
        runs.append(1)
        for number in range(2000):
            txn.put(number.to_bytes(4, "big"), bytes(300), db=small["one"])

    small.write(work)
    assert len(runs) > 2  # ran again after each growth
    assert len(list(small.keys("one"))) == 2000
    small.close()


def test_growth_waits_for_readers_in_other_threads(tmp_path: Path) -> None:
    opened = Database(tmp_path, tables=TABLES, read_only=False, map_bytes=1 << 16)
    reading, written = threading.Event(), threading.Event()

    def write() -> None:
        reading.wait()
        fill(opened, 2000)
        written.set()

    writer = threading.Thread(target=write)
    writer.start()
    with opened.read() as txn:
        reading.set()
        assert not written.wait(0.2)  # the map cannot move while it is looked at
        assert txn.get(b"x", db=opened["one"]) is None
    writer.join()
    assert len(list(opened.keys("one"))) == 2000
    opened.close()


def test_a_container_that_forbids_a_large_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really_open, asked = lmdb.open, []

    def limited(path: str, *, map_size: int, **options: object) -> lmdb.Environment:
        asked.append(map_size)
        if map_size > 1 << 30:
            raise lmdb.MemoryError("Cannot allocate memory", errno.ENOMEM)
        return really_open(path, map_size=map_size, **options)

    monkeypatch.setattr(database.lmdb, "open", limited)
    with Database.open(tmp_path, TABLES) as opened:
        fill(opened, 10)
        assert asked == [1 << power for power in range(40, 29, -1)]


def test_pages_of_keys_and_items(tmp_path: Path) -> None:
    with Database.open(tmp_path, TABLES) as opened:
        fill(opened, 2500, 1)
        assert [int.from_bytes(key, "big") for key in opened.keys("one")] == list(range(2500))
        assert len(list(opened.items("one", bytes([0, 0, 1])))) == 256
        pairs = [(bytes([key]), number.to_bytes(4, "big")) for key in (1, 2) for number in range(1500)]
        opened.write(lambda txn: [txn.put(key, value, db=opened["many"]) for key, value in pairs])
        assert list(opened.items("many")) == pairs
        assert list(opened.items("many", b"\x02")) == pairs[1500:]


def test_an_error_undoes_a_write(tmp_path: Path) -> None:
    with Database.open(tmp_path, TABLES) as opened:

        def work(txn: Transaction) -> None:
            txn.put(b"key", b"value", db=opened["one"])
            raise KeyError

        with pytest.raises(KeyError):
            opened.write(work)
        assert list(opened.keys("one")) == []


def test_one_handle_per_process(tmp_path: Path) -> None:
    first = Database.open(tmp_path, TABLES)
    assert Database.open(tmp_path / "." / "", TABLES) is first
    first.close()
    fill(first, 1)  # still open: one user is left
    first.close()
    with Database.open(tmp_path, TABLES) as again:
        assert again is not first


def test_read_only(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        Database.open(tmp_path / "none", TABLES, read_only=True)
    Database.open(tmp_path, TABLES).close()
    with Database.open(tmp_path, TABLES, read_only=True) as opened:
        assert list(opened.keys("one")) == []
        with pytest.raises(CyberKVError, match="read-only"):
            Database.open(tmp_path, TABLES)
    with pytest.raises(NotFound):
        Database.open(tmp_path, {**TABLES, "newer": False}, read_only=True)


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, "x"), True), (OSError(errno.EDQUOT, "x"), True),
        (OSError(errno.EFBIG, "x"), True),
        (lmdb.DiskError("x", errno.ENOSPC), True), (OSError(errno.EIO, "x"), False), (lmdb.Error("x"), False),
    ],
)  # fmt: skip
def test_disk_errors(tmp_path: Path, error: Exception, full: bool) -> None:
    assert isinstance(error, OSError | lmdb.Error)
    assert isinstance(disk_error(tmp_path, error), TierFull) == full


def test_a_commit_cut_short_by_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = lmdb.Error("mdb_txn_commit: Input/output error")
    error.code = errno.EIO
    assert not isinstance(disk_error(tmp_path, error), TierFull)
    monkeypatch.setattr(diskerrors, "_LOW_BYTES", 1 << 60)  # as if hardly anything were free
    assert isinstance(disk_error(tmp_path, error), TierFull)


def test_what_was_deleted_is_not_left_in_the_file(tmp_path: Path) -> None:
    secret, other = b"a secret of some length %d", b"something else that stays %d"
    with Database.open(tmp_path, TABLES) as opened:

        def put(txn: Transaction) -> None:
            for number in range(600):
                row = (secret if number % 3 else other) % number
                txn.put(number.to_bytes(4, "big"), row * (number % 7 + 1), db=opened["one"])
                txn.put(number.to_bytes(4, "big")[:3], number.to_bytes(4, "big"), db=opened["many"])

        opened.write(put)
        kept = {table: [*opened.items(table)] for table in TABLES}
        kept["one"] = [(key, row) for key, row in kept["one"] if row.startswith(other[:9])]
        opened.write(lambda txn: [txn.delete(n.to_bytes(4, "big"), db=opened["one"]) for n in range(600) if n % 3])
        opened.write(lambda txn: txn.put(database._FILLER + bytes(4), bytes(3000)))  # as a kill leaves one
        file = tmp_path / "data.mdb"
        assert secret[:9] in file.read_bytes()  # control
        opened.overwrite_free()
        assert secret[:9] not in file.read_bytes()
        assert {table: [*opened.items(table)] for table in TABLES} == kept
        with opened.read() as txn, txn.cursor() as cursor:
            assert {*cursor.iternext(values=False)} == {b"one", b"many"}
        size_bytes = file.stat().st_size
        for _ in range(3):
            opened.overwrite_free()
        assert file.stat().st_size < 2 * size_bytes
    with Database.open(tmp_path, TABLES, read_only=True) as opened:
        assert {table: [*opened.items(table)] for table in TABLES} == kept


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_lacks_free_pages_alone_is_whole(tmp_path: Path, read_only: bool) -> None:
    """LMDB never writes a page at the end that was free again before it held anything."""
    with closing(Database.open(tmp_path, TABLES)) as opened:
        fill(opened, 20)
        opened.write(lambda txn: txn.put(b"large", bytes(200_000), db=opened["one"]))
        for _ in range(4):  # what the first frees is written over by the next, and the end stays free
            opened.write(lambda txn: txn.delete(b"large", db=opened["one"]))
            fill(opened, 20)
    promised_bytes = (tmp_path / "data.mdb").stat().st_size
    os.truncate(tmp_path / "data.mdb", promised_bytes - 4096)
    for _ in range(2):
        with closing(Database.open(tmp_path, TABLES, read_only=read_only)) as opened:
            assert len(list(opened.keys("one"))) == 20
    assert (tmp_path / "data.mdb").stat().st_size == promised_bytes - 4096 * read_only
    with closing(Database.open(tmp_path, TABLES)) as opened:
        fill(opened, 3000)
        assert len(list(opened.keys("one"))) == 3000


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_lacks_pages_in_use_is_cut_short(tmp_path: Path, read_only: bool) -> None:
    with closing(Database.open(tmp_path, TABLES)) as opened:
        fill(opened, 2000)
    os.truncate(tmp_path / "data.mdb", (tmp_path / "data.mdb").stat().st_size // 2)
    for _ in range(2):
        with pytest.raises(Corrupt) as caught:
            Database.open(tmp_path, TABLES, read_only=read_only)
        assert "rebuild" in caught.value.hint


def test_nothing_that_is_deleted_makes_a_file_unusable(tmp_path: Path) -> None:
    """Every number of rows deleted, in one transaction or several: opened again, the rest is there."""
    for count in range(0, 60, 3):
        folder = tmp_path / str(count)
        with closing(Database.open(folder, TABLES)) as opened:
            fill(opened, 60, size_bytes=1000)
            for number in range(60 - count, 60):
                opened.write(lambda txn, number=number: txn.delete(number.to_bytes(4, "big"), db=opened["one"]))  # type: ignore[misc]
            opened.overwrite_free()
        with closing(Database.open(folder, TABLES)) as opened:
            assert len(list(opened.keys("one"))) == 60 - count
