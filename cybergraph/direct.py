"""A new file written around the page cache, where the file system allows it.

Written through the cache, a large file costs several times the processor time and drives out what is read often.
"""

import errno
import fcntl
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from mmap import mmap
from typing import Final, Self

from .cid import Buffer

PIECE_BYTES: Final = 4 << 20


class DirectFile:
    """Collects what is written in two pieces of aligned memory: one is filled while the other goes to the disk."""

    def __init__(self, fd: int) -> None:
        """Take an empty file that is open for writing, and stays open. Used in a `with`."""
        self._fd = fd
        self._filling, self._other = (memoryview(mmap(-1, PIECE_BYTES)) for _ in range(2))
        self._used_bytes = 0
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="direct")
        self._under_way: Future[None] | None = None
        with suppress(OSError):  # a file system without
            _set_direct(fd, on=True)

    def writelines(self, vectors: Sequence[Buffer]) -> None:
        """Take buffers one after the other. Raises `OSError` for what was taken before."""
        for vector in vectors:
            rest = memoryview(vector).cast("B")
            while rest.nbytes:
                count = min(rest.nbytes, PIECE_BYTES - self._used_bytes)
                self._filling[self._used_bytes : self._used_bytes + count] = rest[:count]
                self._used_bytes += count
                rest = rest[count:]
                if self._used_bytes == PIECE_BYTES:
                    self._turn()

    def _turn(self) -> None:
        self._finish()
        self._under_way = self._writer.submit(_write, self._fd, self._filling)
        self._filling, self._other = self._other, self._filling
        self._used_bytes = 0

    def _finish(self) -> None:
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            under_way.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._finish()
            if kind is None:
                _set_direct(self._fd, on=False)  # the end of the file is no whole page
                _write(self._fd, self._filling[: self._used_bytes])
        finally:
            self._writer.shutdown()


def _write(fd: int, data: memoryview) -> None:
    while data.nbytes:
        try:
            data = data[os.write(fd, data) :]
        except OSError as error:
            if error.errno != errno.EINVAL or not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
                raise
            _set_direct(fd, on=False)  # after a short write the rest may begin anywhere


def _set_direct(fd: int, *, on: bool) -> None:
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
