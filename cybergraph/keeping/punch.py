"""Give the disk back what lies inside a file, without moving the rest."""

import ctypes
import errno
import os
from typing import Final

_KEEP_SIZE: Final = 1
_PUNCH_HOLE: Final = 2

_libc = ctypes.CDLL(None, use_errno=True)


def punch(fd: int, offset: int, size_bytes: int) -> None:
    """Make a range of a file a hole, which reads as zeros and takes no room.

    Nothing happens where the file system has no holes. Raises `OSError`.
    """
    place, length = ctypes.c_int64(offset), ctypes.c_int64(size_bytes)
    if _libc.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, place, length):
        code = ctypes.get_errno()
        if code != errno.EOPNOTSUPP:
            raise OSError(code, os.strerror(code))
