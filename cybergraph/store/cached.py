"""Ask Linux how much of a file it holds in memory."""

import ctypes
import sys
from typing import Final

_CACHESTAT: Final = 451
"""System call number, the same on every architecture that CyberKV runs on. Linux 6.5 and later."""
_PAGE_BYTES: Final = 4096

_libc = ctypes.CDLL(None, use_errno=True)


def cached_bytes(fd: int, offset: int, size_bytes: int) -> int | None:
    """Give how much of a range of a file is in the page cache, or None where the kernel does not say."""
    if not sys.platform.startswith("linux"):
        return None
    asked = (ctypes.c_uint64 * 2)(offset, size_bytes)
    found = (ctypes.c_uint64 * 5)()  # cached, dirty, being written, evicted, lately evicted pages
    if _libc.syscall(_CACHESTAT, fd, asked, found, 0):
        return None
    return int(found[0]) * _PAGE_BYTES
