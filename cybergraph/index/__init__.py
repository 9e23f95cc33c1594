"""The index: finds blocks by their inputs and by their order, and keeps names and publications.

It is a cache: blocks are the truth, and `rebuild` makes the derived tables anew from them. A CID cannot be
looked up by what went into a block, and a block cannot name its successor; these two questions are what the
index answers, with one table read per block at any length.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Self

from ..database import Database
from ..store.base import Finding, Store
from .blocks import DERIVED_TABLES, BlockTables
from .keying import open_secret
from .marks import MARK_TABLES, Head, MarkTables
from .rebuild import Rebuilt, rebuild
from .records import UNKNOWN_DOMAIN, Divergence, Filed, Found, IndexEntry
from .signers import disagreement, is_own, signed_domain, signer_of


class Index(BlockTables, MarkTables):
    """One index folder.

    Any number of processes and threads may use it at once; each method is a transaction. Its secret is a file beside
    the folder (`secret`); without that file it answers nothing until it is rebuilt.
    """

    def __init__(self, path: Path, *, make: bool = True, read_only: bool = False) -> None:
        """Open the index at `path`, or `make` it, or a new secret for one that has lost it.

        Raises `UnsupportedFormat`, `Corrupt`, `NotFound`, `TierFull`.
        """
        database = Database.open(path, {"meta": False, **DERIVED_TABLES, **MARK_TABLES}, read_only=read_only)
        super().__init__(database)
        self._closed = False
        try:
            self._secret, self.was_rekeyed = open_secret(database, path.resolve(), make=make)
        except BaseException:
            self.close()
            raise

    def check(self) -> Iterator[Finding]:
        """Report tables that disagree."""
        yield from super().check()
        yield from self.check_names()

    def rebuild(self, store: Store) -> Rebuilt:
        """Clear what is derived and compute it again from every node of `store`, in one transaction.

        Domains already known are kept, others become `UNKNOWN_DOMAIN`; names agree with their logs again. In an index
        that held nothing, names come back from the titles of whole conversations, the newest `created` as head.
        """
        return rebuild(self, self._database, store, self._secret)

    def overwrite_free(self) -> None:
        """Leave nothing in the file of what was removed, as `Database.overwrite_free`."""
        self._database.overwrite_free()

    def close(self) -> None:
        """Release the files."""
        if not self._closed:  # the database counts its users
            self._closed = True
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


__all__ = [
    "UNKNOWN_DOMAIN", "Divergence", "Filed", "Found", "Head", "Index", "IndexEntry", "Rebuilt", "disagreement",
    "is_own", "signed_domain", "signer_of",
]  # fmt: skip
