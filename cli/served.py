"""Where the content of a home is being served: each `serve` leaves its URL in the home while it runs."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..cybergraph.private import PRIVATE_FILE, make_private_folder

FOLDER = "serving"


@contextmanager
def announced(home: Path, url: str) -> Iterator[None]:
    """Let others of this home see `url` inside the `with`. A home that cannot be written to is served unannounced."""
    try:
        make_private_folder(home / FOLDER)
        path = home / FOLDER / str(os.getpid())
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE)
    except OSError:
        yield
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # the kernel drops it when the process dies, however it does
        os.write(fd, url.encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)


def served_urls(home: Path) -> list[str]:
    """List the URLs at which this home is being served now."""
    return list(served_pids(home).values())


def served_pids(home: Path) -> dict[int, str]:
    """Give the URL at which each process serves this home now."""
    urls: dict[int, str] = {}
    for path in sorted((home / FOLDER).glob("*")):
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                urls[int(path.name)] = file.read()
            else:
                path.unlink(missing_ok=True)  # left by one that was killed
    return urls
