"""One LMDB environment, shared by everything in a process that opens the same folder.

LMDB locks belong to a process, so a folder must be opened once per process and never across a fork:
`Database.open` counts its users. Any number of processes may read and write; a write transaction is the lock
between them.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

import lmdb

from .diskerrors import disk_error, nothing_at, require_data
from .errors import Corrupt, CyberKVError
from .private import PRIVATE_FILE, make_private_folder
from .probe import reads_whole

Transaction: TypeAlias = Any
"""`lmdb.Transaction`; the binding has no types in the oldest version this project runs with."""
Table: TypeAlias = Any

T = TypeVar("T")

MAP_BYTES = 1 << 40
"""Address space asked for first. It costs nothing until used; where a container forbids it, less is taken."""
LEAST_MAP_BYTES = 1 << 24
PAGE_ENTRIES = 1024
"""Entries read per transaction when a table is listed: no reader may live as long as its caller's loop."""

_FILLER = b"\xff filler "
"""Begins the keys, outside all tables, of rows that are there only to be written."""
_PAGE_HEADER_BYTES = 16


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
        self._kinds = tables
        self._tables: dict[str, Table] = {}
        self._env: Any = None
        self._failed = False
        """LMDB has given the environment up, because the page that names its newest state could not be written."""
        self._connect(map_bytes)

    def _connect(self, map_bytes: int) -> None:
        self._env = self._open_environment(map_bytes, max_tables=len(self._kinds))
        try:
            self._env.reader_check()  # readers that were killed would keep old pages alive
            self._check_size()
            self._tables = self._open_tables(self._kinds)
        except lmdb.Error as error:
            self._env.close()
            raise disk_error(self.path, error) from error
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
            if read_only:
                require_data(path)
            cls._open[path] = opened = cls(path, tables=tables, read_only=read_only)
            return opened

    def _check_size(self) -> None:
        """Refuse a file that lacks pages in use: to read one would end the process.

        LMDB never writes pages at its end that were free again before they had held anything, so a file may be shorter
        than it says. Whether it only lacks those is found out in another process, and then made good for.
        """
        data = self.path / "data.mdb"
        page_bytes: int = self._env.stat()["psize"]
        promised_bytes = (self._env.info()["last_pgno"] + 1) * page_bytes
        size_bytes = data.stat().st_size
        if size_bytes >= promised_bytes:
            return
        if size_bytes % page_bytes or not reads_whole(self.path):
            raise Corrupt(
                f"{data} is cut short at {size_bytes} bytes",
                hint="move it away: `cyberkv index rebuild` makes a new index, a store is fetched again",
                path=str(self.path),
            )
        if not self.read_only:
            with data.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, promised_bytes)  # never shortens what another has made longer

    def _open_environment(self, map_bytes: int, max_tables: int) -> Any:
        while True:
            try:
                make_private_folder(self.path)
                return lmdb.open(
                    str(self.path), map_size=map_bytes, max_dbs=max_tables, max_readers=1024,
                    max_spare_txns=8, readonly=self.read_only, mode=PRIVATE_FILE, create=False,
                )  # fmt: skip
            except (lmdb.MemoryError, MemoryError):
                if map_bytes <= LEAST_MAP_BYTES:
                    raise
                map_bytes //= 2
            except (lmdb.Error, OSError) as error:
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
            raise nothing_at(self.path) from None

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
        except lmdb.Error as error:
            raise disk_error(self.path, error) from error
        finally:
            txn.abort()
            self._leave()

    def _begin_read(self) -> Transaction:
        while True:
            with self._idle:
                self._readers += 1
            try:
                if not self._failed:
                    return self._env.begin()
            except lmdb.MapResizedError:
                pass
            except lmdb.PanicError:
                self._failed = True
            except BaseException:
                self._leave()
                raise
            self._leave()
            self._reconnect() if self._failed else self._resize(0)

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
                if self._failed:
                    self._reconnect()
                try:
                    with self._env.begin(write=True) as txn:
                        return work(txn)
                except lmdb.PanicError:
                    self._failed = True
                except lmdb.MapFullError:
                    self._resize(2 * self._env.info()["map_size"])
                except lmdb.MapResizedError:
                    self._resize(0)
                except lmdb.Error as error:
                    raise disk_error(self.path, error) from error

    def overwrite_free(self) -> None:
        """Leave nothing in the file of what was deleted, neither in pages that are free nor between rows.

        Writes all tables anew, from memory that never held anything else, and zeros over what is free then. Pages that
        a reader of another process looks at meanwhile keep what they hold. Takes the memory of the largest table, and
        as long as to write the file. Rows that a kill leaves behind are in no table, and go the next time. Raises as
        `write`.
        """
        self.check_process()
        with self._writer:
            self._failed = True
            self._reconnect()  # LMDB writes what its memory holds, used or not
            self.write(self._write_anew)
        page_bytes = self._env.stat()["psize"]
        rows = [_FILLER + number.to_bytes(4, "big") for number in range(self._free_pages())]
        filler = bytes(page_bytes - _PAGE_HEADER_BYTES)
        self.write(lambda txn: txn.put(_FILLER, b""))  # what the last transaction freed can be had after one more
        for start in range(0, len(rows), PAGE_ENTRIES):
            some = rows[start : start + PAGE_ENTRIES]
            self.write(lambda txn, some=some: [txn.put(row, filler) for row in some])  # type: ignore[misc]
        self.write(self._drop_fillers)

    def _write_anew(self, txn: Transaction) -> None:
        for table in self._tables.values():
            with txn.cursor(table) as cursor:
                rows = list(cursor)
            txn.drop(table, delete=False)
            for key, row in rows:
                txn.put(key, row, db=table)

    def _free_pages(self) -> int:
        with self.read() as txn:
            stats = [self._env.stat(), *(txn.stat(table) for table in self._tables.values())]
        used: int = sum(each[kind] for each in stats for kind in ("branch_pages", "leaf_pages", "overflow_pages"))
        last: int = self._env.info()["last_pgno"]
        return max(0, last + 1 - used)

    @staticmethod
    def _drop_fillers(txn: Transaction) -> None:
        with txn.cursor() as cursor:
            found = cursor.set_range(_FILLER)
            while found and cursor.key().startswith(_FILLER):
                found = cursor.delete()

    def _resize(self, map_bytes: int) -> None:
        """Give the map another size (0: what another process made it) while no transaction looks at it."""
        with self._writer, self._idle:
            self._idle.wait_for(lambda: self._readers == 0)
            self._env.set_mapsize(map_bytes)

    def _reconnect(self) -> None:
        """Open the environment anew while no transaction looks at it. Raises `TierFull` if the disk is still full."""
        with self._writer, self._idle:
            self._idle.wait_for(lambda: self._readers == 0)
            if self._failed:  # else another thread was faster
                self._env.close()
                self._connect(MAP_BYTES)
                self._failed = False

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
