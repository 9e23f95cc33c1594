"""Blocks on their way into rows of the device, layer group by layer group, as the thread that computes sees them."""

from collections.abc import Sequence
from contextlib import ExitStack
from threading import Condition
from types import TracebackType
from typing import Self

from ...cybergraph.errors import Corrupt, NotFound
from .device import Event
from .devicerows import DeviceRows


class Loading:
    """Leading blocks on their way. Close it on every way out.

    `take`, `finish` and `close` are for the thread that computes: it waits until leaves were verified and their copies
    queued, and never for the device. The others are for `Moves`.
    """

    def __init__(self, pool: DeviceRows, blocks: int) -> None:
        self.limit = blocks
        """Leading blocks that come whole, as far as is known."""
        self.error: BaseException | None = None
        """Why there are fewer than were asked for."""
        self.stopped = False
        """Nobody waits for it any more."""
        self._pool, self._changed = pool, Condition()
        self._rows: list[int] = []
        self._events: list[Event] = []
        """One for each group whose copies are queued."""
        self._taken = 0
        self._begun = self._ended = False

    def take(self, layer: int) -> None:
        """Have the compute stream go on only after the rows of a layer arrived, of all blocks.

        Raises why a block does not come: then `finish` says which do.
        """
        group = layer // self._pool.geometry.layers_per_leaf
        with self._changed:
            self._changed.wait_for(lambda: self.error or self._ended or len(self._events) > group)
            if self.error is not None:
                raise self.error
            if len(self._events) <= group:
                raise RuntimeError("the loading was closed")
        self._wait(group + 1)

    def finish(self) -> int:
        """Wait until no more comes, have the compute stream go on after it, and count the blocks that are whole.

        These are leading ones, fewer than were asked for where `error` is about a leaf that is absent or damaged. Any
        other error is raised.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ended)
            if self.error is not None and not isinstance(self.error, NotFound | Corrupt):
                raise self.error
        if self.limit:
            self._wait(len(self._events))
        return self.limit

    def _wait(self, groups: int) -> None:
        if groups > self._taken:
            self._pool.device.compute.wait(self._events[groups - 1])
            self._taken = groups

    def close(self) -> None:
        """Stop, and give back what was held for it. What was not loaded by now never is. Harmless twice.

        The host waits for the leaves that are being read, not for the device.
        """
        with self._changed:
            self.stopped = True
            if self._begun:
                self._changed.wait_for(lambda: self._ended)
                return
        self.end()

    def hold(self, rows: Sequence[int]) -> None:
        """Count one more user of rows, until the end: what the caller gives back is nobody else's before."""
        for row in rows:
            self._rows.append(self._pool.retain(row))

    def begin(self) -> bool:
        """Say that it is worked on from now on, if anybody still waits for it."""
        with self._changed:
            self._begun = not self.stopped
            return self._begun

    def arrived(self, event: Event) -> None:
        """Say which event follows the copies of the next group."""
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()

    def cut(self, blocks: int, error: BaseException) -> None:
        """Say that no more than some leading blocks will come."""
        with self._changed:
            self.limit, self.error = blocks, error
            self._changed.notify_all()

    def end(self) -> None:
        """Give the rows back and say that no more comes."""
        try:
            with ExitStack() as stack:  # all of them, whatever goes wrong with one
                rows, self._rows = self._rows, []
                for row in rows:
                    stack.callback(self._pool.release, row)
        finally:
            with self._changed:
                if len(self._events) < self._pool.geometry.leaves_per_block:
                    self.limit = 0
                self._ended = True
                self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
