"""What the disk store is measured against: the bare disk, and the usual places to put values."""

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lmdb

from cyberkv.cybergraph.cid import HASHES, Cid, HashName
from cyberkv.cybergraph.store.catalog import Place

MIB = 1 << 20
COMMIT_BYTES = 64 * MIB
"""What the peers commit at once: as much as the store does."""
PIECE_BYTES = 16 * MIB
"""What is written to the bare disk at once."""
HASH_THREADS = 2
READ_THREADS = 4
SLABS, CATALOGUE = "*.kvd", "catalog/data.mdb"

Leaves = Sequence[tuple[Cid, memoryview]]


def write_raw(path: Path, pieces: Sequence[memoryview], *, direct: bool) -> None:
    """Write page-aligned pieces to a new, preallocated file, `direct` around the page cache, and sync it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | (os.O_DIRECT if direct else 0))
    try:
        os.posix_fallocate(fd, 0, sum(map(len, pieces)))
        at = 0
        for piece in pieces:
            assert os.pwrite(fd, piece, at) == len(piece)
            at += len(piece)
        os.fdatasync(fd)
    finally:
        os.close(fd)
        path.unlink()


def hash_all(leaves: Leaves, hash_name: HashName) -> None:
    """Hash on two threads, in pieces of a megabyte and more."""
    digest = HASHES[hash_name]

    def work(part: Leaves) -> None:
        for cid, data in part:
            assert digest(data) == cid.digest

    step = max(1, len(leaves) // 64)
    with ThreadPoolExecutor(HASH_THREADS) as threads:
        list(threads.map(work, (leaves[start : start + step] for start in range(0, len(leaves), step))))


def write_files(folder: Path, leaves: Leaves) -> None:
    """One file for each block, each synced, renamed into place, and its name synced."""
    folder.mkdir()
    folder_fd = os.open(folder, os.O_RDONLY)
    for cid, data in leaves:
        fd = os.open(folder / "new", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(fd, data)
        os.fsync(fd)
        os.close(fd)
        (folder / "new").rename(folder / cid.digest.hex())
        os.fsync(folder_fd)
    os.close(folder_fd)


def write_sqlite(folder: Path, leaves: Leaves) -> None:
    """Values in SQLite, durable at each commit."""
    folder.mkdir()
    database = sqlite3.connect(folder / "values.sqlite")
    database.executescript("PRAGMA page_size = 65536; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")
    database.execute("CREATE TABLE blocks (cid BLOB PRIMARY KEY, data BLOB) WITHOUT ROWID")
    for part in commits(leaves):
        database.executemany("INSERT INTO blocks VALUES (?, ?)", part)
        database.commit()
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()


def write_lmdb(folder: Path, leaves: Leaves) -> None:
    """Values in LMDB, durable at each commit."""
    with lmdb.open(str(folder), map_size=1 << 40) as env:
        for part in commits(leaves):
            with env.begin(write=True) as txn:
                for cid, data in part:
                    txn.put(cid, data)


def commits(leaves: Leaves) -> Iterator[Leaves]:
    """Cut into what is committed at once."""
    step = max(1, COMMIT_BYTES // len(leaves[0][1]))
    return (leaves[start : start + step] for start in range(0, len(leaves), step))


def runs(places: Sequence[Place], rows: Sequence[memoryview]) -> list[tuple[Place, list[memoryview]]]:
    """Merge neighbouring slots into reads of about a megabyte: where each starts and the rows it fills."""
    merged: list[tuple[Place, list[memoryview]]] = []
    before: Place | None = None
    for place, row in sorted(zip(places, rows, strict=True), key=lambda each: each[0]):
        full = not merged or sum(map(len, merged[-1][1])) >= MIB
        if before is None or full or place[:2] != (before.slab, before.slot + 1):
            merged.append((place, []))
        merged[-1][1].append(row)
        before = place
    return merged


def read_raw(
    folder: Path, reads: Sequence[tuple[Place, list[memoryview]]], *, direct: bool, threads: int = READ_THREADS
) -> None:
    """Read the same bytes from the same files, unverified."""
    flags = os.O_RDONLY | (os.O_DIRECT if direct else 0)
    fds = {slab: os.open(folder / slab.file_name, flags) for slab in {place.slab for place, _ in reads}}

    def work(part: Sequence[tuple[Place, list[memoryview]]]) -> None:
        for place, rows in part:
            assert os.preadv(fds[place.slab], rows, place.offset) == sum(map(len, rows))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, (reads[start : start + 4] for start in range(0, len(reads), 4))))
    for fd in fds.values():
        os.close(fd)


def each_file(folder: Path, pattern: str, work: Callable[[int], object]) -> None:
    """Do something with each of some files of a store, open for reading."""
    for path in folder.glob(pattern):
        fd = os.open(path, os.O_RDONLY)
        work(fd)
        os.close(fd)


def forget_pages(folder: Path, pattern: str = SLABS) -> None:
    """Take a store's slab files, or others, and nothing else, out of the page cache."""
    each_file(folder, pattern, lambda fd: os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED))


def warm_pages(folder: Path) -> None:
    """Bring a store's slab files into the page cache."""

    def read(fd: int) -> None:
        while os.read(fd, 16 * MIB):
            pass

    each_file(folder, SLABS, read)
