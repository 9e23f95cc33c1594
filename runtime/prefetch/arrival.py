"""A conversation on its way here, layer by layer: what the first layers read comes first, of all blocks.

`open` brings the page table and the block nodes, small beside the rest, and what can be refused by them is refused
there. `start` then brings the leaves in a thread of its own (`Bringing`), and `take` is where the computing thread
waits. A conversation that breaks off keeps what was verified; `cybergraph.transfer.fetch` brings the rest.
"""

from collections.abc import Callable, Sequence
from threading import Thread
from typing import Final

from ...cybergraph.cid import Cid
from ...cybergraph.errors import CyberKVError, PeerUnreachable
from ...cybergraph.index import Index
from ...cybergraph.peers import Peer
from ...cybergraph.store.base import Store
from ...cybergraph.transfer.progress import SILENT, Progress
from ...cybergraph.transfer.source import SourceReport
from ..rows import ARCHIVED
from ..sequence import Sequence as Cache
from ..tiers import Miss, Residency
from .bringing import Bringing

PATIENCE_S: Final = 60.0
"""After so long without a leaf, what is missing counts as lost. Peers have their own, shorter limits."""
TICK_S: Final = 0.1

Watch = Callable[[int, int], None]
"""Called while somebody waits, with leaf bytes that are here and all of them; what it raises ends the wait."""


def _unwatched(_done: int, _total: int) -> None:
    pass


class Arrival(Bringing):
    """One conversation on its way. `open`, then `start`, then `take` for each layer, `finish`, and always `close`."""

    def __init__(
        self,
        store: Store,
        index: Index,
        root_cid: Cid,
        peers: Sequence[Peer],
        *,
        signer: bytes | None = None,
        progress: Progress = SILENT,
        free_bytes: int | None = None,
        patience_s: float = PATIENCE_S,
        clock_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Prepare, as `Bringing`. On a clock that stands still nothing is ever late."""
        super().__init__(store, index, root_cid, peers, signer=signer, progress=progress, free_bytes=free_bytes)
        self.watch: Watch = _unwatched
        self.kept_blocks = 0
        """Blocks that are used, once it has started."""
        self._patience_s, self._clock_s, self._last_s = patience_s, clock_s, 0.0
        self._taken: set[int] = set()
        self._thread: Thread | None = None

    def start(self, sequence: Cache, first: int, residency: Residency) -> None:
        """Begin to bring the leaves of blocks `first` on into rows of `sequence`, whose table ends there.

        Raises `TierFull`, before anything moves, where pool or store have no room for it.
        """
        self._lay_out(sequence, first, residency)
        geometry = sequence.pool.geometry
        self._total_bytes = len(self._leaves.lacking) * geometry.block_bytes // geometry.leaves_per_block
        self._last_s, self.kept_blocks = self._clock_s(), len(self.steps)
        sequence.coming = self
        self._thread = Thread(target=self._bring, name="arrival", daemon=True)
        self._thread.start()

    def take(self, layer: int) -> tuple[int, int] | None:
        """See `Coming`. Raises why a block does not come, `TierFull` where it could not be stored, and as `watch`."""
        if layer in self._taken:
            return None
        geometry = self._sequence.pool.geometry
        self._wait(lambda: self._leaves.has(layer // geometry.layers_per_leaf))
        self._taken.add(layer)
        first, last = self._first * geometry.block_size, self._leaves.limit * geometry.block_size
        return (first, last) if first < last else None

    def finish(self) -> None:
        """Wait until everything is here and stored. Raises as `take`."""
        self._wait(lambda: self._ended)

    def has_come(self) -> bool:
        """Say whether every block is here; then waits until they are stored."""
        with self._changed:
            if self._thread is None or self.failed is not None or self._leaves.lacking:
                return False
            self._changed.wait_for(lambda: self._stored or self._ended)
            return self._stored

    def _wait(self, is_here: Callable[[], bool]) -> None:
        while True:
            with self._changed:
                if self._error is not None:
                    raise self._error
                if self.failed is not None:
                    raise self.failed[1]
                if is_here():
                    return
                arrived = self._leaves.arrived_bytes
                self._changed.wait(TICK_S)
                if arrived != self._leaves.arrived_bytes:
                    self._last_s = self._clock_s()
                elif not self._leaves.done and self._clock_s() - self._last_s > self._patience_s:
                    self._give_up(PeerUnreachable(f"nothing came for {self._patience_s:g} s", cid=str(self.root_cid)))
            self.watch(self._leaves.arrived_bytes, self._total_bytes)

    def _give_up(self, error: CyberKVError) -> None:
        """Count everything that is missing as lost."""
        self._lose(self._leaves.first_lacking(), error)

    def cut(self) -> Miss | None:
        """See `Coming`. Rows of the blocks behind are let go."""
        with self._changed:
            if self.failed is None:
                return None
            self._changed.wait_for(lambda: self._read_here or self._ended)
            limit, (_, error), self.failed = self._leaves.limit, self.failed, None
            self._taken.clear()
            for block in range(limit, len(self._rows)):
                self._sequence.pool.release(self._rows[block])
            del self._rows[limit:]
        sequence, cid = self._sequence, error.data.get("cid")
        if ARCHIVED in sequence.table[sequence.unread_blocks(limit) : limit]:
            limit, sequence.coming = 0, None  # what a window sees there has no row, and may not be here
        self.kept_blocks = limit
        return Miss(limit * sequence.pool.geometry.block_size, error.message, str(cid) if cid else None, error)

    def stop(self) -> bool:
        """See `Coming`."""
        has_come = self.has_come()
        self.close()
        return has_come

    def close(self) -> None:
        """Stop, store what was verified, and give everything back. Harmless after `finish`, and twice."""
        with self._changed:
            self._closing = True
            if self._thread is not None:
                self._leaves.stopped = self._tail.stopped = True
        self._sources.close()
        if self._thread is not None:
            self._thread.join()
            self._sequence.coming = None
            while self._rows:
                self._sequence.pool.release(self._rows.pop())
        self._stack.close()

    @property
    def fetched_bytes(self) -> int:
        """Bytes that peers gave."""
        return self._landing.fetched_bytes

    def reports(self) -> tuple[SourceReport, ...]:
        """What each peer gave."""
        return self._sources.reports()
