"""One LMDB environment, shared by everything in a process that opens the same folder.

LMDB locks belong to a process, so a folder must be opened once per process and never across a fork:
`Database.open` counts its users. Any number of processes may read and write; a write transaction is the lock
between them.
"""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

import lmdb

from .errors import Corrupt, CyberKVError, NotFound, TierFull
from .private import PRIVATE_FILE, make_private_folder

Transaction: TypeAlias = Any
"""`lmdb.Transaction`; the binding has no types in the oldest version this project runs with."""
Table: TypeAlias = Any

T = TypeVar("T")

MAP_BYTES = 1 << 40
"""Address space asked for first. It costs nothing until used; where a container forbids it, less is taken."""
LEAST_MAP_BYTES = 1 << 24
PAGE_ENTRIES = 1024
"""Entries read per transaction when a table is listed: no reader may live as long as its caller's loop."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LOW_BYTES = 1 << 24


def disk_error(path: Path, error: OSError | lmdb.Error) -> CyberKVError:
    """Turn a failed write into `TierFull` where room ran out, else into an error that names the disk."""
    code = error.errno if isinstance(error, OSError) else getattr(error, "code", None)
    free_bytes = os.statvfs(path).f_bavail * os.statvfs(path).f_frsize
    # LMDB reports a write cut short by a full disk as a plain input/output error.
    cut_short = code == errno.EIO and free_bytes < _LOW_BYTES
    if code in _FULL or isinstance(error, lmdb.DiskError) or cut_short:
        return TierFull(
            f"no room left under {path}: {error}",
            hint="free some space or move the home to a larger disk; what was acknowledged before is safe",
            path=str(path), free_bytes=free_bytes,
        )  # fmt: skip
    return CyberKVError(f"writing under {path} failed: {error}", hint="check the disk and its mount", path=str(path))


def _nothing_at(path: Path) -> NotFound:
    return NotFound(f"nothing stored at {path}", hint="check --home", path=str(path))


class Database:
    """Named tables under one folder. Use `Database.open`; every opened handle must be closed."""

    _open: ClassVar[dict[Path, "Database"]] = {}
    _open_lock: ClassVar = threading.Lock()

    def __init__(self, path: Path, *, tables: dict[str, bool], read_only: bool, map_bytes: int = MAP_BYTES) -> None:
        self.path = path
        self.read_only = read_only
        self.users = 1
        self._pid = os.getpid()
        self._readers = 0
        self._idle = threading.Condition()
        self._writer = threading.RLock()
        self._env = self._open_environment(map_bytes, max_tables=len(tables))
        try:
            self._env.reader_check()  # readers that were killed would keep old pages alive
            info = self._env.info()
            size_bytes = (path / "data.mdb").stat().st_size
            if size_bytes < (info["last_pgno"] + 1) * self._env.stat()["psize"]:
                raise Corrupt(f"{path / 'data.mdb'} is cut short at {size_bytes} bytes", path=str(path))
            self._tables = self._open_tables(tables)
        except BaseException:
            self._env.close()
            raise

    @classmethod
    def open(cls, path: Path, tables: dict[str, bool], *, read_only: bool = False) -> "Database":
        """Open a folder, or share the handle this process already has.

        `tables` maps each table's name to whether a key may hold several values, all of one size. Raises
        `NotFound` for a read-only open of nothing, `Corrupt` for files that are not a database.
        """
        path = path.resolve()
        with cls._open_lock:
            if (held := cls._open.get(path)) is not None:
                held.check_process()
                if held.read_only and not read_only:
                    raise CyberKVError(f"{path} is open read-only in this process", hint="close it first")
                held.users += 1
                return held
            if read_only and not (path / "data.mdb").exists():
                raise _nothing_at(path)
            cls._open[path] = opened = cls(path, tables=tables, read_only=read_only)
            return opened

    def _open_environment(self, map_bytes: int, max_tables: int) -> Any:
        make_private_folder(self.path)
        while True:
            try:
                return lmdb.open(
                    str(self.path), map_size=map_bytes, max_dbs=max_tables, max_readers=1024,
                    max_spare_txns=8, readonly=self.read_only, mode=PRIVATE_FILE,
                )  # fmt: skip
            except (lmdb.MemoryError, MemoryError):
                if map_bytes <= LEAST_MAP_BYTES:
                    raise
                map_bytes //= 2
            except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError) as error:
                raise Corrupt(
                    f"{self.path} does not hold a database: {error}",
                    hint="move it away: `cyberkv index rebuild` makes a new index, a store is fetched again",
                    path=str(self.path),
                ) from error
            except lmdb.Error as error:
                raise disk_error(self.path, error) from error

    def _open_tables(self, tables: dict[str, bool]) -> dict[str, Table]:
        def opened(txn: Transaction) -> dict[str, Table]:
            return {
                name: self._env.open_db(
                    name.encode(), txn=txn, dupsort=several, dupfixed=several, create=txn is not None
                )
                for name, several in tables.items()
            }

        if not self.read_only:
            with self._env.begin(write=True) as txn:
                return opened(txn)
        try:
            return opened(None)  # the binding forgets table handles that were opened in a caller's read transaction
        except lmdb.NotFoundError:
            raise _nothing_at(self.path) from None

    def close(self) -> None:
        """Give the handle back; the last one closes the files."""
        with self._open_lock:
            self.users -= 1
            if self.users == 0:
                self._open.pop(self.path, None)
                self._env.close()

    def check_process(self) -> None:
        """Refuse to work in a forked child, whose locks would be its parent's."""
        if os.getpid() != self._pid:
            raise CyberKVError(
                f"{self.path} was opened before this process was forked",
                hint="open it after the fork, or use spawn",
            )

    def __getitem__(self, table: str) -> Table:
        return self._tables[table]

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """Give a consistent view for the length of a `with`. Never hold it while yielding to a caller."""
        self.check_process()
        txn = self._begin_read()
        try:
            yield txn
        finally:
            txn.abort()
            self._leave()

    def _begin_read(self) -> Transaction:
        while True:
            with self._idle:
                self._readers += 1
            try:
                return self._env.begin()
            except BaseException as error:
                self._leave()
                if not isinstance(error, lmdb.MapResizedError):
                    raise
            self._resize(0)

    def _leave(self) -> None:
        with self._idle:
            self._readers -= 1
            self._idle.notify_all()

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in a write transaction and commit it durably.

        Nothing of it is visible unless it returns. It runs again when the map had to grow. Raises
        `TierFull` where the disk is full.
        """
        self.check_process()
        with self._writer:
            while True:
                try:
                    with self._env.begin(write=True) as txn:
                        return work(txn)
                except lmdb.MapFullError:
                    self._resize(2 * self._env.info()["map_size"])
                except lmdb.MapResizedError:
                    self._resize(0)
                except lmdb.Error as error:
                    raise disk_error(self.path, error) from error

    def _resize(self, map_bytes: int) -> None:
        """Give the map another size (0: what another process made it) while no transaction looks at it."""
        with self._writer, self._idle:
            self._idle.wait_for(lambda: self._readers == 0)
            self._env.set_mapsize(map_bytes)

    def items(self, table: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """List the entries whose keys start with `prefix`, in order, a page per transaction.

        Entries added or removed meanwhile may or may not be seen.
        """
        return self._pages(table, prefix, lambda cursor: cursor.item(), lambda entry: entry[0])

    def keys(self, table: str, prefix: bytes = b"") -> Iterator[bytes]:
        """List the keys that start with `prefix`, as `items` does, of a table with one value a key."""
        return self._pages(table, prefix, lambda cursor: cursor.key(), lambda key: key)

    def _pages(self, table: str, prefix: bytes, entry: Callable[[Any], T], key: Callable[[T], bytes]) -> Iterator[T]:
        last: Any = None
        while True:
            page: list[T] = []
            with self.read() as txn, txn.cursor(self[table]) as cursor:
                found = cursor.set_range(prefix if last is None else key(last))
                while last is not None and found and entry(cursor) <= last:
                    found = cursor.next()
                while found and len(page) < PAGE_ENTRIES and cursor.key().startswith(prefix):
                    page.append(entry(cursor))
                    found = cursor.next()
            yield from page
            if len(page) < PAGE_ENTRIES:
                return
            last = page[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
