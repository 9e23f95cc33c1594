"""Page-aligned memory for blocks on their way, within a fixed budget.

A few buffers take turns. A room is cut from the current one; a buffer is used again once nothing refers to any of its
rooms, so nobody has to give rooms back, and whoever wants one meanwhile waits. Rooms begin at multiples of the page,
one after the other: a store may write them without copying.

>>> staging = Staging(budget_bytes=16 << 20)
>>> room = staging.room(5000)
>>> room.nbytes, staging.in_use_bytes
(5000, 8192)
>>> del room
>>> staging.in_use_bytes
0
"""

import ctypes
import mmap
import weakref
from collections.abc import Callable
from contextlib import suppress
from threading import Condition
from typing import Final

from .errors import PeerUnreachable
from .limits import MAX_LEAF_BYTES

PAGE_BYTES: Final = mmap.PAGESIZE
BUFFERS: Final = 4
"""One is filled, one is hashed, one is written, one is spare."""

Room = Callable[[int], memoryview]
"""Gives writable memory of a size in bytes."""


def room_bytes(size_bytes: int) -> int:
    """Give what a room takes of the budget: whole pages. Whoever waits for an amount of blocks counts in these.

    >>> room_bytes(64), room_bytes(4097)
    (4096, 8192)
    """
    return max(1, -(-size_bytes // PAGE_BYTES)) * PAGE_BYTES


def heap_room(size_bytes: int) -> memoryview:
    """Give memory outside any budget."""
    return memoryview(bytearray(size_bytes))


class _Buffer:
    def __init__(self, size_bytes: int) -> None:
        self.memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without
                self.memory.madvise(mmap.MADV_HUGEPAGE)  # the kernel copies into it and the disk reads from it
        self.used_bytes = 0
        self.rooms: dict[int, tuple[weakref.ref[object], int]] = {}
        """Offset -> room that somebody refers to, and its size."""


class Staging:
    """Buffers of one transfer. `room` may be called from any thread."""

    def __init__(self, budget_bytes: int) -> None:
        """Set memory aside, at least a largest leaf for each buffer. What is never filled costs nothing."""
        self._buffer_bytes = max(budget_bytes // BUFFERS // PAGE_BYTES * PAGE_BYTES, MAX_LEAF_BYTES)
        self._buffers = [_Buffer(self._buffer_bytes) for _ in range(BUFFERS)]
        self._current = self._buffers[0]
        self._changed = Condition()  # reentrant: a room may be dropped by whoever holds it
        self._closed = False

    @property
    def in_use_bytes(self) -> int:
        """Bytes of the rooms that somebody refers to, in whole pages."""
        with self._changed:
            return sum(size_bytes for buffer in self._buffers for _, size_bytes in buffer.rooms.values())

    def room(self, size_bytes: int) -> memoryview:
        """Give `size_bytes` of memory, waiting for it. Raises `PeerUnreachable` once the staging is closed."""
        taken_bytes = room_bytes(size_bytes)
        with self._changed:
            while (buffer := self._with_room(taken_bytes)) is None:
                if self._closed:
                    raise PeerUnreachable("the transfer has ended")
                self._changed.wait()
            at = buffer.used_bytes
            cut = (ctypes.c_char * size_bytes).from_buffer(buffer.memory, at)
            buffer.rooms[at] = weakref.ref(cut, lambda _: self._dropped(buffer, at)), taken_bytes
            buffer.used_bytes += taken_bytes
            return memoryview(cut).cast("B")

    def close(self) -> None:
        """Make whoever waits for room fail. Rooms that were given stay usable."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _with_room(self, taken_bytes: int) -> _Buffer | None:
        for buffer in (self._current, *self._buffers):
            if not buffer.rooms:
                buffer.used_bytes = 0
            if (buffer is self._current or not buffer.rooms) and (
                buffer.used_bytes + taken_bytes <= self._buffer_bytes
            ):
                self._current = buffer
                return buffer
        return None

    def _dropped(self, buffer: _Buffer, at: int) -> None:
        with self._changed:
            del buffer.rooms[at]
            if not buffer.rooms:
                self._changed.notify_all()
