"""Moves between device memory and what is below it: the store's leaves up, rows down to host memory and up again.

Leaves are read from the store into page-locked slots and verified there, by its threads, while those before them are
being copied: what does not hash to its name never leaves the host. They come group by group, the lowest layers of all
blocks first, so the first layers can be computed while the others are on their way.

The host waits for the device in three places only: the thread that reads, for a slot that it is about to fill again,
and `HostRow.leaves` and `Moves.read`, for rows that are about to be read. Everything else is events between streams.
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Final

from torch import Tensor

from ...cybergraph.cid import Cid
from ...cybergraph.errors import Corrupt, NotFound
from ..pool import LeafSource
from .device import Event, Stream
from .devicerows import DeviceRows
from .loading import Loading
from .staging import HostRow, Slot, Slots

SLOT_BYTES: Final = 8 << 20
"""Large enough for the store to read and hash by several threads."""
SLOTS: Final = 4


class Moves:
    """Moves of one pool. Every method may be called from any thread."""

    def __init__(
        self,
        pool: DeviceRows,
        executor: Executor,
        *,
        host_bytes: int = 0,
        may_be_less: bool = False,
        slot_bytes: int = SLOT_BYTES,
        slots: int = SLOTS,
    ) -> None:
        """Set page-locked memory aside. Raises `TierFull`.

        At least two `slots` of `slot_bytes` are for what comes up, `host_bytes` for rows that are kept below the
        device: what there is of it, where that `may_be_less`. `executor` reads; it stays the caller's.
        """
        geometry = pool.geometry
        self.pool, self.device, self._executor = pool, pool.device, executor
        most_bytes = max(map(geometry.leaf_bytes, range(geometry.leaves_per_block)))
        self.ring = Slots(self.device, max(slot_bytes, most_bytes), slots)
        self.host = Slots(
            self.device, geometry.block_bytes, host_bytes // geometry.block_bytes, may_be_fewer=may_be_less
        )
        self._up, self._down = self.device.stream(), self.device.stream()

    def load(self, source: LeafSource, leaves: Sequence[Sequence[Cid]], rows: Sequence[int]) -> Loading:
        """Begin to bring blocks into rows that the caller has, and keeps until the loading is closed.

        Shape: `leaves[i]` are the leaves of the block that goes to `rows[i]`, lowest layers first. The rows were taken
        for this, and no kernel has touched them since. What `source` raises comes out of the loading.
        """
        loading = Loading(self.pool, len(rows))
        try:
            loading.hold(rows)
            self._executor.submit(self._bring, loading, source, leaves, list(rows))
        except BaseException:
            loading.close()
            raise
        return loading

    def restore(self, blocks: Sequence[tuple[HostRow, int]]) -> Loading:
        """Queue the copies of host rows into rows that were taken for this. The host rows may be closed right after."""
        loading = Loading(self.pool, len(blocks))
        rows, slots = [row for _, row in blocks], [host.slot for host, _ in blocks]
        try:
            for group, (start, end) in enumerate(self.pool.geometry.leaf_spans):
                pairs = [(self.pool.leaf(row, group), host.slot.tensor[start:end]) for host, row in blocks]
                loading.arrived(self._copy(pairs, self._up, rows, slots))
        finally:
            loading.end()
        return loading

    def save(self, row: int) -> HostRow:
        """Queue the copy of a row to host memory. The row may be dropped right after: its next use comes after it.

        The caller has the row, or holds the pool's lock. Of a row in use, what is queued on the compute stream now is
        copied too. Raises `TierFull` where host memory has no room.
        """
        slot = self.host.take()
        try:
            self._lower([row], [slot.tensor], [slot])
        except BaseException:
            self.host.give(slot)
            raise
        return HostRow(slot, self.pool.geometry, self.host.give)

    def host_row(self) -> HostRow:
        """Give host memory for a block, to be written by the host. Raises `TierFull` where it has no room."""
        return HostRow(self.host.take(), self.pool.geometry, self.host.give)

    def read(self, rows: Sequence[int]) -> list[memoryview]:
        """Copy rows to page-locked memory of their own, and have the host wait for them. Of which rows, see `save`.

        Raises `TierFull` where there is no room.
        """
        size_bytes = self.pool.geometry.block_bytes
        memory = self.device.pinned(max(1, len(rows) * size_bytes))
        blocks = [memory[at : at + size_bytes] for at in range(0, len(rows) * size_bytes, size_bytes)]
        if rows:
            self._lower(rows, blocks, []).synchronize()
        return [block.numpy().data for block in blocks]

    def write(self, row: int, block: Tensor) -> None:
        """Queue the copy of page-locked bytes, uint8 [block_bytes], to a row in use, after what is queued over it."""
        self._up.wait(self.device.compute.record())
        self._copy([(self.pool.bytes[row], block)], self._up, [row], [])

    def _lower(self, rows: Sequence[int], targets: Sequence[Tensor], slots: Sequence[Slot]) -> Event:
        """Queue copies of rows to host memory."""
        if any(self.pool.users(row) for row in rows):
            self._down.wait(self.device.compute.record())
        pairs = [(target, self.pool.bytes[row]) for target, row in zip(targets, rows, strict=True)]
        return self._copy(pairs, self._down, rows, slots)

    def _bring(
        self, loading: Loading, source: LeafSource, leaves: Sequence[Sequence[Cid]], rows: Sequence[int]
    ) -> None:
        if not loading.begin():
            return
        try:
            for group in range(self.pool.geometry.leaves_per_block):
                self._bring_group(loading, group, source, leaves, rows)
                if loading.stopped:
                    break
                loading.arrived(self._up.record())
        except BaseException as error:
            loading.cut(0, error)
        finally:
            loading.end()

    def _bring_group(
        self, loading: Loading, group: int, source: LeafSource, leaves: Sequence[Sequence[Cid]], rows: Sequence[int]
    ) -> None:
        """Bring one group of all blocks, a slot at a time; blocks from a leaf on that does not come are left out."""
        size_bytes, start = self.pool.geometry.leaf_bytes(group), 0
        while start < loading.limit and not loading.stopped:
            end = min(start + self.ring.slot_bytes // size_bytes, loading.limit)
            cids = [leaves[block][group] for block in range(start, end)]
            starts = range(0, (end - start) * size_bytes, size_bytes)
            with self.ring.turn() as slot:
                try:
                    source.get_into(cids, [slot.view[at : at + size_bytes] for at in starts])
                except (NotFound, Corrupt) as error:
                    named = str(error.data.get("cid"))
                    loading.cut(start + next((i for i, cid in enumerate(cids) if str(cid) == named), 0), error)
                    continue
                here = rows[start:end]
                pairs = [
                    (self.pool.leaf(row, group), slot.tensor[at : at + size_bytes])
                    for row, at in zip(here, starts, strict=True)
                ]
                self._copy(pairs, self._up, here, [slot])
            start = end

    def _copy(
        self, pairs: Sequence[tuple[Tensor, Tensor]], stream: Stream, rows: Sequence[int], slots: Sequence[Slot]
    ) -> Event:
        """Queue copies, (target, source), of some rows and slots after what touches these, and mark their end.

        After an error none is queued any more.
        """
        try:
            with self.pool.lock:  # of two threads with the same row, one comes after the other
                self.pool.order(rows, stream)
                for slot in slots:
                    slot.order(stream)
                self.device.copy(pairs, stream)
                event = stream.record()
                for slot in slots:
                    slot.passed(event)
                self.pool.passed(rows, event)
                return event
        except BaseException:
            stream.synchronize()
            raise

    def drain(self) -> None:
        """Have the host wait for the copies that are queued."""
        self._up.synchronize()
        self._down.synchronize()

    def check_integrity(self) -> list[str]:
        """List what does not add up in the slots; empty where all is well."""
        return [*self.ring.check_integrity(), *self.host.check_integrity()]
