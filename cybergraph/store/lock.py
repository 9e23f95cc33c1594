"""Who is writing: a lock that every writer of a store shares, and that whoever throws things away needs alone.

A recording or a fetch stores blocks before the root that makes them reachable, and counts on blocks it has found
here. Nothing on disk tells those from what nobody needs, so nothing is thrown away while another process may be in
the middle of such work. The kernel lets go of the lock of a process that was killed.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import pack
from threading import Lock
from typing import Final

from ..private import PRIVATE_FILE

FILE_NAME: Final = "WRITERS"
_COUNT_BYTES: Final = 8


class WriterLock:
    """One writer's share of the lock. It belongs to this object, not to the process: two in one process are two."""

    def __init__(self, folder: Path) -> None:
        """Join the writers. Waits while somebody has the store alone."""
        self._one = Lock()
        self._fd = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            self._set(fcntl.F_OFD_SETLKW, fcntl.F_RDLCK)
            count = (self.joined + 1) % (1 << 8 * _COUNT_BYTES)  # the file may be damaged and hold the highest
            os.pwrite(self._fd, count.to_bytes(_COUNT_BYTES, "little"), 0)
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def joined(self) -> int:
        """How often writers joined so far: unchanged since this one was alone, no other has written since."""
        return int.from_bytes(os.pread(self._fd, _COUNT_BYTES, 0), "little")

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Give whether this is the only writer; if so, none joins until the block ends.

        Waits for other threads that ask for the same, never for other writers.
        """
        with self._one:
            if not self._try(fcntl.F_WRLCK):
                yield False
                return
            try:
                yield True
            finally:
                self._try(fcntl.F_RDLCK)

    def _try(self, kind: int) -> bool:
        try:
            self._set(fcntl.F_OFD_SETLK, kind)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            return False
        return True

    def _set(self, command: int, kind: int) -> None:
        fcntl.fcntl(self._fd, command, pack("hhqqi", kind, os.SEEK_SET, 0, 0, 0))

    def close(self) -> None:
        """Leave the writers. May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
