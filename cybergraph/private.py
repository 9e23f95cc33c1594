"""Folders and files that only their owner may read: blocks, tokens and names are the text of conversations."""

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

PRIVATE_FOLDER: Final = 0o700
PRIVATE_FILE: Final = 0o600


def make_private_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, private; one that is there stays as it is.

    Raises `FileExistsError` where something else has the name.
    """
    if not path.exists():
        make_private_folder(path.parent)
    path.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read. Raises `OSError`, also for what is none, such as a pipe, which could keep us waiting."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(fd, "rb")


def write_private(path: Path, parts: Iterable[bytes], *, sync: bool) -> None:
    """Write a file, private and whole or not at all, in place of one that is there; `sync` makes its bytes durable."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE), "wb") as file:
            file.writelines(parts)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
