"""The marks: names, their logs, what was published or pinned, and where it was fetched from.

They cannot be derived from blocks, but nothing else depends on them.

    heads      name -> number of the newest root, root, created; empty for a dropped name
    log        name, zero byte, number -> root, created
    public     CID -> nothing: the gateway may serve it
    published  root -> nothing
    pins       CID -> created
    sources    root -> where it was fetched from, a line each

In the table `meta`, root and signer -> the last receipt of theirs that was published for it, until that is deleted.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ..cid import CID_BYTES, CID_PREFIXES, TEXT_CHARS, Cid
from ..database import Database, Transaction
from ..errors import BadReference, Corrupt, NameNotFound, Refused
from ..store.base import Finding
from .records import RECEIPT, text_of

MARK_TABLES: Final = {
    "heads": False, "log": False, "public": False, "published": False, "pins": False, "sources": False,
}  # fmt: skip
MAX_NAME_BYTES: Final = 255
MAX_SOURCES: Final = 8
"""Places remembered for one conversation."""
_NUMBER_BYTES: Final = 8
_CID_STARTS: Final = tuple(str(Cid(prefix + bytes(CID_BYTES - len(prefix))))[:7] for prefix in CID_PREFIXES)
"""`bafyrei`, …: the letters that every CID of one form begins with."""


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
        """Append `root` to the log of `name` and make it the head, whatever the head is; the head again is no change.

        Who goes on from a head uses `advance`. Raises `BadReference` for a name of a form that is not allowed.
        """
        key = encode_name(name)
        self._database.write(lambda txn: self.append(txn, key, root, created))

    def advance(self, name: str, root: Cid, created: str, *, expected: Cid | None) -> bool:
        """Do as `set_head` where `name` ends at `expected`, or at `root` already; None: where there is no such name.

        False, and no change, where it ends elsewhere: another writer has moved, taken or dropped it meanwhile. Looking
        and moving are one transaction, so of several writers who go on from one head one moves it. Raises
        `BadReference`.
        """
        key = encode_name(name)

        def work(txn: Transaction) -> bool:
            row = txn.get(key, default=b"", db=self._database["heads"])
            if _root_of(row) not in (expected, root):
                return False
            self.append(txn, key, root, created)
            return True

        return self._database.write(work)

    def append(self, txn: Transaction, key: bytes, root: Cid, created: str) -> None:
        """Move a head within a transaction; `key` is the encoded name."""
        row = txn.get(key, default=b"", db=self._database["heads"])
        if _root_of(row) == root:
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

    def check_names(self) -> Iterator[Finding]:
        """Report names whose newest root is not the last of their log."""
        rows = [(_split(key), row) for key, row in self._database.items("log")]
        last = {name: (number, row) for (name, number), row in rows}
        for key, row in self._database.items("heads"):
            if last.pop(key, (b"", b"")) != (row[:_NUMBER_BYTES], row[_NUMBER_BYTES:]):
                yield Finding(None, "index", f"the name {text_of(key)!r} and its log disagree")
        for key in last:
            yield Finding(None, "index", f"the name {text_of(key)!r} is gone, its log is here")

    def mend_names(self, txn: Transaction) -> None:
        """Within a transaction, let names and logs agree again: the last root that can be read in either is the head.

        Rows that cannot be read go.
        """
        last: dict[bytes, bytes] = {}
        for table in ("heads", "log"):  # in a log the newest comes last
            with txn.cursor(self._database[table]) as cursor:
                for key, row in list(cursor):
                    name, number = (key, row[:_NUMBER_BYTES]) if table == "heads" else _split(key)
                    value = row[_NUMBER_BYTES:] if table == "heads" else row
                    if _is_root(value):
                        last[name] = max(last.get(name, b""), number + value, key=lambda each: each[:_NUMBER_BYTES])
                    elif row or table == "log":  # the row of a dropped name is empty
                        txn.delete(key, db=self._database[table])
        for name, row in last.items():
            txn.put(name, row, db=self._database["heads"])
            txn.put(name + b"\0" + row[:_NUMBER_BYTES], row[_NUMBER_BYTES:], db=self._database["log"])

    def roots(self) -> list[Cid]:
        """List every root that a name or its log holds, and what was published or pinned, ordered by CID."""
        logged = {Cid(row[:CID_BYTES]) for _, row in self._database.items("log")}
        return sorted(logged.union(self.published(), self.pins()))

    def drop(self, name: str, *, head: Cid | None = None) -> None:
        """Forget a name and its log, with `head` only where it ends there; the blocks stay.

        A rebuild does not bring it back. Raises `NameNotFound`, and as `begin_anew`.
        """

        def work(txn: Transaction) -> None:
            self._require_head(txn, name, head)
            self._drop(txn, name)

        self._database.write(work)

    def begin_anew(self, name: str, head: Cid, root: Cid, created: str) -> None:
        """Forget the log of a name that ends at `head`, and make `root` the first and only one of it.

        Raises `NameNotFound`, and `Refused` for a name that has moved on: what it moved to would be lost.
        """
        key = encode_name(name)

        def work(txn: Transaction) -> None:
            self._require_head(txn, name, head)
            self._drop(txn, name)
            self.append(txn, key, root, created)

        self._database.write(work)

    def _require_head(self, txn: Transaction, name: str, head: Cid | None) -> None:
        got = _root_of(txn.get(encode_name(name), default=b"", db=self._database["heads"]))
        if None not in (got, head) and got != head:
            raise Refused(
                f"{name} has moved on meanwhile: it ends at {got}, and ended at {head}",
                hint="the same command again takes it all", name=name, field="head", expected=str(head), got=str(got),
            )  # fmt: skip

    def _drop(self, txn: Transaction, name: str) -> None:
        key = encode_name(name)
        if not txn.get(key, db=self._database["heads"]):
            raise _unknown_name(name)
        txn.put(key, b"", db=self._database["heads"])
        with txn.cursor(self._database["log"]) as cursor:
            found = cursor.set_range(key + b"\0")
            while found and cursor.key().startswith(key + b"\0"):
                found = cursor.delete()

    def publish(self, root: Cid, cids: Iterable[Cid]) -> None:
        """Mark a root and its closure as public, durably. There is no way back: copies may have left."""
        marked = [root, *cids]

        def work(txn: Transaction) -> None:
            for cid in marked:
                txn.put(cid, b"", db=self._database["public"])
            txn.put(root, b"", db=self._database["published"])

        self._database.write(work)

    def withdraw(self, root: Cid, cids: Iterable[Cid]) -> None:
        """Serve a published root and `cids` no longer. Copies that have left stay where they are."""
        marked = [root, *cids]

        def work(txn: Transaction) -> None:
            for cid in marked:
                txn.delete(cid, db=self._database["public"])
            txn.delete(root, db=self._database["published"])

        self._database.write(work)

    def is_public(self, cid: Cid) -> bool:
        """Say whether a block may be served."""
        with self._database.read() as txn:
            return txn.get(cid, db=self._database["public"]) is not None

    def published(self) -> list[Cid]:
        """List the published roots, ordered by CID."""
        return [Cid(key) for key, _ in self._database.items("published")]

    def keep_receipt(self, root: Cid, signer: bytes, receipt: Cid) -> None:
        """Note the receipt that was published for a root, in whatever way, by the Ed25519 key that signed it."""
        self._database.write(lambda txn: txn.put(RECEIPT + root + signer, receipt, db=self._database["meta"]))

    def receipt_of(self, root: Cid, signer: bytes) -> Cid | None:
        """Give the last receipt by a signer that was published here for a root, None where there is none."""
        with self._database.read() as txn:
            row = txn.get(RECEIPT + root + signer, db=self._database["meta"])
        return None if row is None else Cid(row)

    def pin(self, cid: Cid, created: str) -> bool:
        """Keep a node and all it needs, and say whether that is new."""
        return bool(
            self._database.write(lambda txn: txn.put(cid, created.encode(), overwrite=False, db=self._database["pins"]))
        )

    def unpin(self, cid: Cid) -> bool:
        """Take a pin away, and say whether there was one."""
        return bool(self._database.write(lambda txn: txn.delete(cid, db=self._database["pins"])))

    def pins(self) -> dict[Cid, str]:
        """List what is pinned, ordered by CID, with the time of each pin as it was given."""
        return {Cid(key): text_of(row) for key, row in self._database.items("pins")}

    def add_sources(self, root: Cid, sources: Iterable[str]) -> None:
        """Note where a conversation was fetched from, the newest first: there it can be fetched again."""
        named = list(sources)

        def work(txn: Transaction) -> None:
            row = text_of(txn.get(root, default=b"", db=self._database["sources"])).splitlines()
            lines = list(dict.fromkeys([*named, *row]))[:MAX_SOURCES]
            txn.put(root, "\n".join(lines).encode(), db=self._database["sources"])

        if named:
            self._database.write(work)

    def sources(self) -> dict[Cid, list[str]]:
        """List every root that was fetched with where it came from, the newest first."""
        return {Cid(key): text_of(row).splitlines() for key, row in self._database.items("sources")}


def encode_name(name: str) -> bytes:
    """Check and encode a conversation's name.

    A name is 1 to 255 bytes of printable characters without a slash, neither beginning nor ending with a space. It does
    not begin with a dash, which would read as an option, nor like a CID, which it would hide. Raises `BadReference`.
    """
    data = name.encode(errors="replace")
    if not name or len(data) > MAX_NAME_BYTES:
        raise _bad_name(name, f"a name has 1 to {MAX_NAME_BYTES} bytes, not {len(data)}")
    if not name.isprintable() or name != name.strip():
        raise _bad_name(name, f"not usable as a name: {name!r}")
    if name[0] == "-" or "/" in name or "\\" in name:
        raise _bad_name(name, f"a name neither begins with a dash nor holds a slash: {name!r}")
    if name.startswith(_CID_STARTS) or (len(name) == TEXT_CHARS and name[0] == "b"):
        raise _bad_name(name, f"a name must not look like a CID: {name}")
    return data


def _head(key: bytes, row: bytes) -> Head:
    return Head(text_of(key), Cid(row[:CID_BYTES]), text_of(row[CID_BYTES:]))


def _split(key: bytes) -> tuple[bytes, bytes]:
    """Take the key of a log apart: name and number."""
    return key[: -1 - _NUMBER_BYTES], key[-_NUMBER_BYTES:]


def _is_root(value: bytes) -> bool:
    try:
        return bool(Cid(value[:CID_BYTES]))
    except Corrupt:
        return False


def _root_of(row: bytes) -> Cid | None:
    """Give the root of a row of `heads`, None for a name that is not there or was dropped."""
    return Cid(row[_NUMBER_BYTES : _NUMBER_BYTES + CID_BYTES]) if row else None


def _bad_name(name: str, message: str) -> BadReference:
    return BadReference(message, hint="choose a name such as report-2", name=name[:80])


def _unknown_name(name: str) -> NameNotFound:
    return NameNotFound(f"no conversation named {name!r}", hint="see `cyberkv list`", name=name)
