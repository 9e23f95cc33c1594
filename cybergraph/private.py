"""Folders and files that only their owner may read: blocks, tokens and names are the text of conversations."""

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

PRIVATE_FOLDER: Final = 0o700
PRIVATE_FILE: Final = 0o600
_LOCK: Final = "lock"


def make_private_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, private and durable; one that is there stays as it is.

    Raises `FileExistsError` where something else has the name.
    """
    is_new = not path.exists()
    if is_new:
        make_private_folder(path.parent)
    path.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    if is_new:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Hold off other processes that change something in a private folder, which is made where there is none."""
    make_private_folder(folder)
    fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read. Raises `OSError`, also for what is none, such as a pipe, which could keep us waiting."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(fd, "rb")


def open_or_pipe(path: Path) -> BinaryIO:
    """Open a file or pipe to read. A pipe that nobody writes to is at its end, instead of keeping us waiting."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(fd, True)
    return os.fdopen(fd, "rb")


def write_once(path: Path, data: bytes) -> None:
    """Write a new file, private, durable, and whole or not at all. Of several who do so at once one wins.

    Raises `FileExistsError` where there is one. The caller makes its name durable with the folder.
    """
    temporary = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)  # unlike a rename, it takes nobody's place
    finally:
        temporary.unlink()


def write_private(path: Path, parts: Iterable[bytes], *, sync: bool) -> None:
    """Write a file, private and whole or not at all, in place of one that is there; `sync` makes that durable."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE), "wb") as file:
            file.writelines(parts)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if sync:
            sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
