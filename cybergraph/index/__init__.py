"""The index: finds blocks by their inputs and by their order, and keeps names and publications.

It is a cache: blocks are the truth, and `rebuild` makes the derived tables anew from them. A CID cannot be
looked up by what went into a block, and a block cannot name its successor; these two questions are what the
index answers, with one table read per block at any length.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from ..database import Database
from ..errors import Corrupt, UnsupportedFormat
from ..store.base import Finding, Store
from .blocks import DERIVED_TABLES, BlockTables
from .marks import MARK_TABLES, Head, MarkTables
from .rebuild import Rebuilt, rebuild
from .records import UNKNOWN_DOMAIN, Divergence, Found, IndexEntry

VERSION: Final = b"1"


class Index(BlockTables, MarkTables):
    """One index folder.

    Any number of processes and threads may use it at once; each method is a transaction.
    """

    def __init__(self, path: Path, *, make: bool = True, read_only: bool = False) -> None:
        """Open the index at `path`, or `make` it. Raises `UnsupportedFormat`, `Corrupt`, `NotFound`."""
        database = Database.open(path, {"meta": False, **DERIVED_TABLES, **MARK_TABLES}, read_only=read_only)
        super().__init__(database)
        self._closed = False
        try:
            self._check_version(path, make=make)
        except BaseException:
            self.close()
            raise

    def _check_version(self, path: Path, *, make: bool) -> None:
        database = self._database
        with database.read() as txn:
            version = txn.get(b"version", db=database["meta"])
        if version is None and not make:
            raise Corrupt(f"the index {path} has lost what it held", hint="run `cyberkv index rebuild`", path=str(path))
        if version is None:
            database.write(lambda txn: txn.put(b"version", VERSION, db=database["meta"]))
        elif version != VERSION:
            raise UnsupportedFormat(
                f"index {path} has version {version!r}, this program reads {VERSION!r}",
                hint="a newer cyberkv may read it; or move it away and run `cyberkv index rebuild`",
            )

    def check(self) -> Iterator[Finding]:
        """Report tables that disagree."""
        yield from super().check()
        yield from self.check_names()

    def rebuild(self, store: Store) -> Rebuilt:
        """Clear what is derived and compute it again from every node of `store`, in one transaction.

        Domains already known are kept, others become `UNKNOWN_DOMAIN`. In an index that held nothing, names come
        back from the titles of whole conversations, the newest `created` as head.
        """
        return rebuild(self, self._database, store)

    def close(self) -> None:
        """Release the files."""
        if not self._closed:  # the database counts its users
            self._closed = True
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


__all__ = ["UNKNOWN_DOMAIN", "Divergence", "Found", "Head", "Index", "IndexEntry", "Rebuilt"]
