"""The marks: names, their logs, and what was published.

They cannot be derived from blocks, but nothing else depends on them.

    heads      name -> number of the newest root, root, created; empty for a dropped name
    log        name, zero byte, number -> root, created
    public     CID -> nothing: the gateway may serve it
    published  root -> nothing
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from ..cid import CID_BYTES, TEXT_CHARS, Cid
from ..database import Database, Transaction
from ..errors import BadReference, NameNotFound

MARK_TABLES: Final = {"heads": False, "log": False, "public": False, "published": False}
MAX_NAME_BYTES: Final = 255
_NUMBER_BYTES: Final = 8


class Head(NamedTuple):
    """One root of a named conversation."""

    name: str
    root: Cid
    created: str
    """RFC 3339 time in UTC, or empty."""


class MarkTables:
    """Names and publications. Every method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def set_head(self, name: str, root: Cid, created: str) -> None:
        """Append `root` to the log of `name` and make it the head; the head again is no change.

        Raises `BadReference` for a name of a form that is not allowed.
        """
        key = encode_name(name)
        self._database.write(lambda txn: self.append(txn, key, root, created))

    def append(self, txn: Transaction, key: bytes, root: Cid, created: str) -> None:
        """Move a head within a transaction; `key` is the encoded name."""
        row = txn.get(key, default=b"", db=self._database["heads"])
        if row[_NUMBER_BYTES : _NUMBER_BYTES + CID_BYTES] == root:
            return
        number = (int.from_bytes(row[:_NUMBER_BYTES], "big") + 1).to_bytes(_NUMBER_BYTES, "big")
        value = root + created.encode()
        txn.put(key, number + value, db=self._database["heads"])
        txn.put(key + b"\0" + number, value, db=self._database["log"])

    def head(self, name: str) -> Head:
        """Give the newest root of a name. Raises `NameNotFound`, `BadReference`."""
        key = encode_name(name)
        with self._database.read() as txn:
            row = txn.get(key, default=b"", db=self._database["heads"])
        if not row:
            raise _unknown_name(name)
        return _head(key, row[_NUMBER_BYTES:])

    def heads(self) -> list[Head]:
        """List every name with its newest root, ordered by name."""
        return [_head(key, row[_NUMBER_BYTES:]) for key, row in self._database.items("heads") if row]

    def log(self, name: str) -> list[Head]:
        """List the successive roots of a name, oldest first. Raises `NameNotFound`."""
        prefix = encode_name(name) + b"\0"
        roots = [_head(prefix[:-1], row) for _, row in self._database.items("log", prefix)]
        if not roots:
            raise _unknown_name(name)
        return roots

    def roots(self) -> list[Cid]:
        """List every root that a name or its log holds or that was published, ordered by CID."""
        logged = {Cid(row[:CID_BYTES]) for _, row in self._database.items("log")}
        return sorted(logged.union(self.published()))

    def drop(self, name: str) -> None:
        """Forget a name and its log; the blocks stay.

        A rebuild does not bring it back. Raises `NameNotFound`.
        """
        key = encode_name(name)

        def work(txn: Transaction) -> None:
            if not txn.get(key, db=self._database["heads"]):
                raise _unknown_name(name)
            txn.put(key, b"", db=self._database["heads"])
            with txn.cursor(self._database["log"]) as cursor:
                found = cursor.set_range(key + b"\0")
                while found and cursor.key().startswith(key + b"\0"):
                    found = cursor.delete()

        self._database.write(work)

    def publish(self, root: Cid, cids: Iterable[Cid]) -> None:
        """Mark a root and its closure as public, durably. There is no way back: copies may have left."""
        marked = [root, *cids]

        def work(txn: Transaction) -> None:
            for cid in marked:
                txn.put(cid, b"", db=self._database["public"])
            txn.put(root, b"", db=self._database["published"])

        self._database.write(work)

    def is_public(self, cid: Cid) -> bool:
        """Say whether a block may be served."""
        with self._database.read() as txn:
            return txn.get(cid, db=self._database["public"]) is not None

    def published(self) -> list[Cid]:
        """List the published roots, ordered by CID."""
        return [Cid(key) for key, _ in self._database.items("published")]


def encode_name(name: str) -> bytes:
    """Check and encode a conversation's name. Raises `BadReference`."""
    data = name.encode(errors="replace")
    if not name or len(data) > MAX_NAME_BYTES:
        raise BadReference(f"a name has 1 to {MAX_NAME_BYTES} bytes, not {len(data)}", name=name[:80])
    if not name.isprintable() or name != name.strip():
        raise BadReference(f"not usable as a name: {name!r}", hint="use printable characters", name=name)
    if len(name) == TEXT_CHARS and name.startswith("b"):
        raise BadReference(f"a name must not look like a CID: {name}", hint="choose another name", name=name)
    return data


def _head(key: bytes, row: bytes) -> Head:
    return Head(key.decode(), Cid(row[:CID_BYTES]), row[CID_BYTES:].decode())


def _unknown_name(name: str) -> NameNotFound:
    return NameNotFound(f"no conversation named {name!r}", hint="see `cyberkv list`", name=name)
