"""What the disk under a database or a file says, as errors of this project."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import lmdb

from .errors import Corrupt, CyberKVError, NotFound, TierFull

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LOW_BYTES = 1 << 24
_DAMAGE = (
    lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError, lmdb.PageNotFoundError, lmdb.IncompatibleError,
    lmdb.BadTxnError, lmdb.CursorFullError,
)  # fmt: skip
"""What LMDB says of a file that is no database or has bad pages."""


def disk_error(path: Path, error: OSError | lmdb.Error) -> CyberKVError:
    """Turn a failure into `TierFull` where room ran out, `Corrupt` for damage, else an error that names the disk."""
    if isinstance(error, _DAMAGE):
        return damaged(path, error)
    code = error.errno if isinstance(error, OSError) else getattr(error, "code", None)
    free_bytes = _free_bytes(path)
    # LMDB reports a write cut short by a full disk as a plain input/output error.
    cut_short = code == errno.EIO and free_bytes < _LOW_BYTES
    if code in _FULL or isinstance(error, lmdb.DiskError) or cut_short:
        return TierFull(
            f"no room left under {path}: {error}",
            hint="free some space or move the home to a larger disk; what was acknowledged before is safe",
            path=str(path), free_bytes=free_bytes,
        )  # fmt: skip
    return CyberKVError(
        f"access to {path} failed: {error}", hint="check the disk, its mount and permissions", path=str(path)
    )


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Raise what the disk says inside the `with` as `disk_error` puts it."""
    try:
        yield
    except CyberKVError:
        raise  # some are an `OSError` as well
    except (OSError, lmdb.Error) as error:
        raise disk_error(path, error) from error


def damaged(path: Path, reason: object) -> Corrupt:
    """Say that a database is no longer whole."""
    return Corrupt(
        f"the database in {path} is damaged: {reason}",
        hint="move it away: `cyberkv index rebuild` makes a new index, a store is fetched again", path=str(path),
    )  # fmt: skip


def _free_bytes(path: Path) -> int:
    for each in (path, *path.parents):  # the folder itself may be what could not be made or seen
        with suppress(OSError):
            space = os.statvfs(each)
            return space.f_bavail * space.f_frsize
    return 0


def nothing_at(path: Path) -> NotFound:
    """Say that there is no database."""
    return NotFound(f"nothing stored at {path}", hint="check --home", path=str(path))


def require_data(path: Path) -> None:
    """Refuse what cannot be opened only to read: LMDB would write the first pages of a file without any."""
    with disk_errors(path):
        try:
            size_bytes = (path / "data.mdb").stat().st_size
        except FileNotFoundError:
            raise nothing_at(path) from None
    if not size_bytes:
        raise damaged(path, "its file is empty")
