"""Which secret an index is under: checked when it is opened, made with a new index and for one of the first version."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from ..database import Database, Transaction
from ..diskerrors import disk_error
from ..errors import Corrupt, UnsupportedFormat
from ..prefix import PrefixKey, keyed
from .secret import make_secret, read_secret, secret_path, witness

VERSION: Final = b"2"
UNKEYED: Final = b"1"
"""Prefix keys stood as they are."""
_KEY_BYTES: Final = 32

Row = tuple[bytes, bytes]


class Keying(NamedTuple):
    """What opening an index found."""

    secret: bytes | None
    """None for an index of the first version in a folder that takes no file."""
    rekeyed: bool
    """Whether it was of the first version, and now is not."""


def open_secret(database: Database, path: Path, *, make: bool) -> Keying:
    """Give the secret of the index at `path`, which is made where there is no index yet, if `make` says so.

    An index of the first version is brought to this one. With `make`, one whose secret is lost gets another: what it
    holds is found again after a rebuild. Raises `Corrupt`, `UnsupportedFormat`, `TierFull`.
    """
    with database.read() as txn:
        version, known = (txn.get(key, db=database["meta"]) for key in (b"version", b"witness"))
    if version is None and (not make or database.read_only):
        raise Corrupt(f"the index {path} has lost what it held", hint="run `cyberkv index rebuild`", path=str(path))
    if version not in (None, VERSION, UNKEYED):
        raise UnsupportedFormat(
            f"index {path} has version {version!r}, this program reads {VERSION!r}",
            hint="a newer cyberkv may read it; or move it away and run `cyberkv index rebuild`",
        )
    file = secret_path(path)
    try:
        secret = read_secret(file)
        if version == VERSION and (secret is None or witness(secret) != known) and (not make or database.read_only):
            raise Corrupt(
                f"the index {path} was made with another secret than {file} holds" if secret else f"{file} is gone",
                hint="bring that file back, or run `cyberkv index rebuild`", path=str(file),
            )  # fmt: skip
        if version == UNKEYED and database.read_only:
            return Keying(None, rekeyed=False)
        secret = secret or make_secret(file)
    except PermissionError as error:
        if version == UNKEYED:
            return Keying(None, rekeyed=False)
        raise disk_error(file, error) from error
    except OSError as error:
        if isinstance(error, Corrupt):
            raise
        raise disk_error(file, error) from error
    if version == VERSION:
        return Keying(secret, rekeyed=False)
    return Keying(secret, rekeyed=database.write(lambda txn: _bring_up(database, txn, secret)))


def sign(database: Database, txn: Transaction, secret: bytes) -> None:
    """Note that everything in the index is under `secret`."""
    txn.put(b"version", VERSION, db=database["meta"])
    txn.put(b"witness", witness(secret), db=database["meta"])


def _bring_up(database: Database, txn: Transaction, secret: bytes) -> bool:
    """Make a new index one of this version, and put every key of an older one under the secret."""
    version = txn.get(b"version", db=database["meta"])
    if version == VERSION:
        return False  # another process was faster
    if version == UNKEYED:
        _replace(database, txn, "found", ((_keyed(key, secret), row) for key, row in _rows(database, txn, "found")))
        _replace(database, txn, "blocks", ((key, _keyed(row, secret)) for key, row in _rows(database, txn, "blocks")))
        rivals = _rows(database, txn, "divergences")
        _replace(database, txn, "divergences", ((_keyed(key, secret), row) for key, row in rivals))
    sign(database, txn, secret)
    return bool(version == UNKEYED)


def _keyed(data: bytes, secret: bytes) -> bytes:
    """Key the prefix key that `data` begins with."""
    return keyed(PrefixKey(data[:_KEY_BYTES]), secret) + data[_KEY_BYTES:]


def _rows(database: Database, txn: Transaction, table: str) -> list[Row]:
    with txn.cursor(database[table]) as cursor:
        return list(cursor)


def _replace(database: Database, txn: Transaction, table: str, rows: Iterable[Row]) -> None:
    new = sorted(rows)  # in order: several times as fast
    txn.drop(database[table], delete=False)
    for key, row in new:
        txn.put(key, row, db=database[table])
