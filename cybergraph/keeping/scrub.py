"""Read every block now and then, so that damage is found while there is still somewhere to get the block from.

A scrub is a thread that stays out of the way: it reads at a bounded rate, and not at all in a stretch of time in which
the store was used for anything else.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os import urandom
from threading import Event, Thread
from typing import Final

from ..cid import CID_BYTES, CID_PREFIXES, Cid
from ..errors import BlockNotFound, Corrupt, CyberKVError
from ..store.base import Finding
from ..store.disk import DiskStore

RATE_BYTES_S: Final = 16 << 20
"""Most that is read in a second: about a hundredth of what a disk gives, and 16 GiB in 17 minutes."""
STEP_BYTES: Final = 4 << 20
"""What is read in one go, between two looks at whether there is other work."""
REST_S: Final = 3600.0
"""Pause after the last block, before the first one is read again."""


@dataclass(slots=True)
class Scrubbed:
    """How far a scrub is."""

    blocks: int = 0
    bytes: int = 0
    damaged: int = 0
    rounds: int = 0
    """How often every block was read."""


class Scrub:
    """A scrub of one store, between `start` and `close`."""

    def __init__(
        self,
        store: DiskStore,
        report: Callable[[Finding], None],
        *,
        drop: Callable[[Cid], bool] = lambda _: True,
        uses: Callable[[], int] = lambda: 0,
        rate_bytes_s: int = RATE_BYTES_S,
    ) -> None:
        """Take a handle of its own on a store: what a scrub reads must not count as used.

        `report` is told of each damaged block, from the scrub's thread, once `drop` has taken it out of the store and
        says that it was damaged still. What cannot be read in full may be sound: it is told, once for each reason, and
        left where it is. `uses` counts the calls of all other work on the store.
        """
        self.done = Scrubbed()
        self._store = store
        self._report = report
        self._drop = drop
        self._uses = uses
        self._rate_bytes_s = rate_bytes_s
        self._told: set[str] = set()
        self._stop = Event()
        self._thread = Thread(target=self._run, name="scrub", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Stop after the block at hand, and wait for that. May be called again, and without `start`."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._round()
            except CyberKVError as error:  # the disk itself fails: whoever works with the store meets it, too
                self._report(Finding(None, "store", error.message))
            self._stop.wait(REST_S)

    def _round(self) -> None:
        step_bytes, uses = 0, self._uses()
        for cid in self._circle():
            if self._stop.is_set():
                return
            step_bytes += self._check(cid)
            if step_bytes >= STEP_BYTES or self._uses() != uses:
                uses = self._rest(max(step_bytes, STEP_BYTES) / self._rate_bytes_s)
                step_bytes = 0
        self.done.rounds += 1

    def _circle(self) -> Iterator[Cid]:
        """List every block once, from a random one on, so that short scrubs, too, come to every block in time."""
        start = urandom(CID_BYTES - len(CID_PREFIXES[0]))
        for lead in range(start[0], start[0] + 257):  # the first byte is met twice: from `start` on, and up to it
            for form in CID_PREFIXES:
                for cid in self._store.cids(form + bytes([lead % 256])):
                    if cid.digest[0] != start[0] or (cid.digest >= start) == (lead == start[0]):
                        yield cid

    def _rest(self, seconds: float) -> int:
        """Wait, and wait again for as long as there is other work meanwhile; give the uses so far."""
        while True:
            uses = self._uses()
            if self._stop.wait(seconds) or self._uses() == uses:
                return uses

    def _check(self, cid: Cid) -> int:
        try:
            size_bytes = len(self._store.get(cid))
        except BlockNotFound:
            return 0  # deleted since it was listed
        except Corrupt as error:
            size_bytes = 0
            if error.data.get("unreadable"):
                self._tell_unreadable(cid, error)
            elif self._drop(cid):
                self.done.damaged += 1
                self._report(Finding(cid, "block", error.message))
        self.done.blocks += 1
        self.done.bytes += size_bytes
        return size_bytes

    def _tell_unreadable(self, cid: Cid, error: Corrupt) -> None:
        """Tell of a block that cannot be judged; a slab that is missing is not told for each of its leaves."""
        reason = str(error.data["reason"])
        if reason not in self._told:
            self._told.add(reason)
            self._report(Finding(cid, "block", f"{error.message}; nothing was dropped"))
