"""Slab files: leaves in slots of one size, payload only.

    slab-<slot KiB>-<n>.kvd    slot i at byte i * slot size; a leaf, then zeros up to the end of its slot

Slots are multiples of 4 KiB, so leaves lie where the disk and the page cache like them, and leaves written in
order lie side by side: a chain comes back in reads of about a megabyte. What a slot holds is only known to
the catalogue.
"""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from ..cid import Buffer
from ..private import PRIVATE_FILE

KIB: Final = 1024
SLOT_UNIT_BYTES: Final = 4 * KIB
SLAB_BYTES = 1 << 30
"""Size at which a slab is full and the next one is begun."""
GROWTH_BYTES: Final = 64 << 20
"""Most that is preallocated at once; small slabs double, so that a rare slot size costs little."""
MAX_VECTORS: Final = 1024
"""Buffers per system call (IOV_MAX)."""

_ZEROS: Final = bytes(SLOT_UNIT_BYTES)


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

    def __init__(self, folder: Path, *, read_only: bool) -> None:
        self._folder = folder
        self._read_only = read_only
        self._open: dict[SlabId, int] = {}
        self._lock = Lock()

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
            os.posix_fallocate(fd, size_bytes, max(needed_bytes, grown_bytes) - size_bytes)

    def write(self, slab: SlabId, first_slot: int, leaves: Sequence[Buffer]) -> None:
        """Write leaves into consecutive slots, in as few calls as may be."""
        vectors: list[Buffer] = []
        offset = first_slot * slab.slot_bytes
        for leaf in leaves:
            vectors.append(leaf)
            if padding_bytes := slab.slot_bytes - memoryview(leaf).nbytes:
                vectors.append(_ZEROS[:padding_bytes])
        fd = self._fd(slab)
        for start in range(0, len(vectors), MAX_VECTORS):
            offset += _write_all(fd, vectors[start : start + MAX_VECTORS], offset)

    def sync(self, slab: SlabId) -> None:
        """Make what was written durable."""
        os.fdatasync(self._fd(slab))

    def read_bytes(self, slab: SlabId, offset: int, size_bytes: int) -> bytes:
        """Read bytes from `offset`: fewer than asked where the file is missing, cut short or unreadable."""
        parts: list[bytes] = []
        with _unreadable_is_empty():
            fd = self._fd(slab)
            while size_bytes and (part := os.pread(fd, size_bytes, offset)):
                parts.append(part)
                offset += len(part)
                size_bytes -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, slab: SlabId, offset: int, targets: Sequence[memoryview]) -> None:
        """Fill buffers with consecutive bytes from `offset`.

        Where the file is missing, cut short or unreadable they keep what they held: the caller checks hashes.
        """
        pending = [target for target in targets if target.nbytes]
        with _unreadable_is_empty():
            fd = self._fd(slab)
            while pending and (count := os.preadv(fd, pending[:MAX_VECTORS], offset)):
                offset += count
                pending = _rest(pending, count)

    def close(self) -> None:
        """Close every file."""
        with self._lock:
            while self._open:
                os.close(self._open.popitem()[1])

    def _fd(self, slab: SlabId) -> int:
        with self._lock:
            if (fd := self._open.get(slab)) is None:
                flags = os.O_RDONLY if self._read_only else os.O_RDWR
                fd = self._open[slab] = os.open(self._folder / slab.file_name, flags | os.O_CLOEXEC)
                # The kernel's own readahead would read megabytes around every leaf.
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            return fd


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _unreadable_is_empty() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EIO):
            raise


def _write_all(fd: int, vectors: list[Buffer], offset: int) -> int:
    pending = [view for vector in vectors if (view := memoryview(vector).cast("B")).nbytes]
    written = 0
    while pending:
        count = os.pwritev(fd, pending, offset + written)
        written += count
        pending = _rest(pending, count)
    return written


def _rest(pending: list[memoryview], done_bytes: int) -> list[memoryview]:
    """Cut what a short read or write has done from the front."""
    for index, view in enumerate(pending):
        if done_bytes < view.nbytes:
            return [view[done_bytes:], *pending[index + 1 :]]
        done_bytes -= view.nbytes
    return []
