"""Slab files: leaves in slots of one size, payload only.

    slab-<slot KiB>-<n>.kvd    slot i at byte i * slot size; a leaf, then zeros up to the end of its slot

Slots are multiples of 4 KiB, so leaves lie where the disk and the page cache like them, and leaves written in
order lie side by side: a chain comes back in reads of about a megabyte. What a slot holds is only known to
the catalogue.

Where the file system allows it, writes go around the page cache (O_DIRECT): several times faster than through
it, and the caller's memory is the disk's. That wants page-aligned buffers; what is not aligned goes through the
page cache. Both may be mixed in one file, and `fdatasync` covers both.
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from ctypes import addressof, c_char
from mmap import mmap
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from ..private import PRIVATE_FILE, sync_folder
from .cached import cached_bytes

KIB: Final = 1024
SLOT_UNIT_BYTES: Final = 4 * KIB
SLAB_BYTES = 1 << 30
"""Size at which a slab is full and the next one is begun."""
GROWTH_BYTES: Final = 64 << 20
"""Most that is preallocated at once; small slabs double, so that a rare slot size costs little."""
RESERVE_BYTES: Final = 16 << 20
"""Room on the disk that slabs leave to the catalogue: without it nothing could be deleted when the disk is full."""
MAX_VECTORS: Final = 1024
"""Buffers per system call (IOV_MAX)."""


class SlabId(NamedTuple):
    """One slab file."""

    slot_kib: int
    number: int

    @property
    def file_name(self) -> str:
        """Name inside the store's folder."""
        return f"slab-{self.slot_kib}-{self.number}.kvd"

    @property
    def slot_bytes(self) -> int:
        """Size of each slot."""
        return self.slot_kib * KIB


def slot_kib(size_bytes: int) -> int:
    """Give the slot size for a leaf, in KiB.

    >>> slot_kib(245_760), slot_kib(245_761), slot_kib(0)
    (240, 244, 4)
    """
    return max(1, -(-size_bytes // SLOT_UNIT_BYTES)) * (SLOT_UNIT_BYTES // KIB)


def slots_per_slab(kib: int) -> int:
    """Give the number of slots in a full slab."""
    return max(1, SLAB_BYTES // (kib * KIB))


class SlabFiles:
    """Open slab files of one store. Errors of the operating system pass through as `OSError`."""

    def __init__(self, folder: Path, *, read_only: bool, direct: bool) -> None:
        """Name the folder; `direct` says that its files take O_DIRECT, as `takes_direct` finds out."""
        self._folder = folder
        self._read_only = read_only
        self._open: dict[tuple[SlabId, bool], int] = {}
        self._lock = Lock()
        self.direct = direct
        """Becomes False for good when the file system refuses an aligned write or read."""

    def size_bytes(self, slab: SlabId) -> int | None:
        """Give the length of a slab's file, or None if there is none."""
        with suppress(FileNotFoundError):
            return (self._folder / slab.file_name).stat().st_size
        return None

    def reserve(self, slab: SlabId, slots: int) -> None:
        """Make the file long enough for `slots` slots, allocated on disk; make the file if there is none."""
        if not (self._folder / slab.file_name).exists():
            os.close(os.open(self._folder / slab.file_name, os.O_RDWR | os.O_CREAT, PRIVATE_FILE))
            sync_folder(self._folder)
        fd, needed_bytes = self._fd(slab), slots * slab.slot_bytes
        size_bytes = os.fstat(fd).st_size
        if size_bytes < needed_bytes:
            grown_bytes = min(
                size_bytes + GROWTH_BYTES, 2 * size_bytes, slots_per_slab(slab.slot_kib) * slab.slot_bytes
            )
            least_bytes = needed_bytes - size_bytes
            room_bytes = _free_bytes(fd) - RESERVE_BYTES
            if least_bytes > room_bytes:
                raise OSError(errno.ENOSPC, f"{slab.file_name} needs {least_bytes} bytes more")
            os.posix_fallocate(fd, size_bytes, max(least_bytes, min(grown_bytes - size_bytes, room_bytes)))

    def write(self, slab: SlabId, offset: int, vectors: list[memoryview]) -> None:
        """Write buffers one after the other from `offset`, in as few calls as may be."""
        pending = vectors
        while pending:
            count = self._call(os.pwritev, slab, pending[:MAX_VECTORS], offset, direct=True)
            if not count:
                raise OSError(errno.EIO, f"nothing was written to {slab.file_name}")
            offset += count
            pending = _rest(pending, count)

    def sync(self, slab: SlabId) -> None:
        """Make what was written durable."""
        os.fdatasync(self._fd(slab))

    def read_bytes(self, slab: SlabId, slot: int, size_bytes: int) -> bytes:
        """Read the start of a slot: fewer bytes than asked where the file is missing, cut short or unreadable."""
        parts: list[bytes] = []
        offset = slot * slab.slot_bytes
        with _unreadable_is_empty():
            fd = self._fd(slab)
            while size_bytes and (part := os.pread(fd, size_bytes, offset)):
                parts.append(part)
                offset += len(part)
                size_bytes -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, slab: SlabId, offset: int, targets: Sequence[memoryview], *, direct: bool = False) -> None:
        """Fill buffers with consecutive bytes from `offset`, around the page cache if `direct`.

        Where the file is missing, cut short or unreadable they keep what they held: the caller checks hashes.
        """
        pending = [target for target in targets if target.nbytes]
        with _unreadable_is_empty():
            while pending and (count := self._call(os.preadv, slab, pending[:MAX_VECTORS], offset, direct=direct)):
                offset += count
                pending = _rest(pending, count)

    def cached_bytes(self, slab: SlabId, offset: int, size_bytes: int) -> int | None:
        """Give how much of a range is in the page cache, or None where the kernel does not say."""
        with suppress(FileNotFoundError):
            return cached_bytes(self._fd(slab), offset, size_bytes)
        return None

    def _call(
        self,
        call: Callable[[int, list[memoryview], int], int],
        slab: SlabId,
        vectors: list[memoryview],
        offset: int,
        *,
        direct: bool,
    ) -> int:
        # After a short write or read the rest may begin anywhere: it goes through the page cache.
        if direct and self.direct and offset % SLOT_UNIT_BYTES == 0:
            try:
                return call(self._fd(slab, direct=True), vectors, offset)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self.direct = False
        return call(self._fd(slab), vectors, offset)

    def close(self) -> None:
        """Close every file."""
        with self._lock:
            while self._open:
                os.close(self._open.popitem()[1])

    def _fd(self, slab: SlabId, *, direct: bool = False) -> int:
        with self._lock:
            if (fd := self._open.get((slab, direct))) is None:
                flags = (os.O_RDONLY if self._read_only else os.O_RDWR) | (os.O_DIRECT if direct else 0)
                fd = self._open[slab, direct] = os.open(self._folder / slab.file_name, flags | os.O_CLOEXEC)
                # The kernel's own readahead would read megabytes around every leaf.
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            return fd


def _free_bytes(fd: int) -> int:
    space = os.fstatvfs(fd)
    return space.f_bavail * space.f_frsize


def takes_direct(file: Path) -> bool:
    """Say whether the file system of a file, which may be short, takes O_DIRECT."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        return False  # EINVAL on most file systems in memory and some that lie over others
    try:
        with mmap(-1, SLOT_UNIT_BYTES) as page:
            os.preadv(fd, [page], 0)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def address(view: memoryview) -> int | None:
    """Give where a writable buffer lies in memory, or None for one that is empty or not writable."""
    return None if view.readonly or not view.nbytes else addressof(c_char.from_buffer(view))


def is_aligned(view: memoryview) -> bool:
    """Say whether a buffer can be read or written around the page cache: whole pages, beginning at one."""
    return not view.nbytes % SLOT_UNIT_BYTES and (at := address(view)) is not None and not at % SLOT_UNIT_BYTES


@contextmanager
def _unreadable_is_empty() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EIO):
            raise


def _rest(pending: list[memoryview], done_bytes: int) -> list[memoryview]:
    """Cut what a short read or write has done from the front."""
    for index, view in enumerate(pending):
        if done_bytes < view.nbytes:
            return [view[done_bytes:], *pending[index + 1 :]]
        done_bytes -= view.nbytes
    return []
