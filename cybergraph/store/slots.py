"""Which slots are free: derived from the catalogue, and kept for as long as nobody else changes it."""

import os
from collections.abc import Callable
from threading import RLock

from ..database import Transaction
from .catalog import Catalog, Place
from .slab import KIB, SlabId, slots_per_slab

STAMP_BYTES = 16


class Slots:
    """The slots of one store, as of the last transaction that changed them.

    Each such transaction leaves a random stamp in the catalogue. A writer that finds its own stamp there knows
    that its map still holds; one that finds another's scans the catalogue (about 0.1 s for 262,144 leaves). So
    neither an aborted transaction nor another process can make a slot be given out twice.
    """

    def __init__(self, catalog: Catalog, size_bytes: Callable[[SlabId], int | None]) -> None:
        """`size_bytes` gives the length of a slab's file, None where there is none."""
        self.lock = RLock()
        """Held by a writer from its first look at the slots to the end of its transaction."""
        self._catalog = catalog
        self._size_bytes = size_bytes
        self._used: dict[SlabId, bytearray] = {}  # one byte a slot: 1 where a leaf lies
        self._used_bytes = 0
        self._released: list[Place] = []
        self._stamp: bytes | None = None

    def begin(self, txn: Transaction) -> None:
        """Make the map right for a write transaction that is going to change it, and has not yet."""
        stamp, self._stamp = self._stamp, None
        if stamp is not None and stamp == self._catalog.stamp(txn):
            for place in self._released:
                self._used[place.slab][place.slot] = 0
        else:
            self._scan(txn)
        self._released = []

    def end(self, txn: Transaction) -> None:
        """Leave a stamp for what this transaction made of the slots. It counts only if the commit does."""
        self._stamp = os.urandom(STAMP_BYTES)
        self._catalog.put_stamp(txn, self._stamp)

    def allocate(self, slot_kib: int, count: int) -> list[tuple[SlabId, int]]:
        """Take slots of one size, lowest first, so that freed ones are used before files grow.

        A slab that lost leaves is passed over: made long again it would hide that, and the right file may come back.
        """
        taken: list[tuple[SlabId, int]] = []
        number = 0
        while len(taken) < count:
            slab = SlabId(slot_kib, number)
            used = self._slab(slab)
            slot = used.find(0)
            if (self._size_bytes(slab) or 0) < (used.rfind(1) + 1) * slab.slot_bytes:
                slot = -1
            while slot >= 0 and len(taken) < count:
                used[slot] = 1
                taken.append((slab, slot))
                slot = used.find(0, slot + 1)
            number += 1
        self._used_bytes += count * slot_kib * KIB
        return taken

    def release(self, place: Place) -> None:
        """Give a slot back. It may be written only by later transactions, when this one is committed."""
        self._released.append(place)
        self._used_bytes -= place.slab.slot_bytes

    def used_bytes(self, txn: Transaction) -> int:
        """Give the size of all slots that hold leaves, as `txn` sees them. The caller holds the lock."""
        if self._stamp is not None and self._stamp == self._catalog.stamp(txn):
            return self._used_bytes
        return sum(kib * KIB for kib, *_ in self._catalog.rows(txn))

    def _scan(self, txn: Transaction) -> None:
        self._used, self._used_bytes = {}, 0
        slab, used = SlabId(0, 0), bytearray()
        for kib, number, slot, _ in self._catalog.rows(txn):
            if (kib, number) != slab:
                slab = SlabId(kib, number)
                used = self._slab(slab)
            self._used_bytes += kib * KIB
            if slot < len(used):  # else the row is damaged, and `check` says so
                used[slot] = 1

    def _slab(self, slab: SlabId) -> bytearray:
        if (used := self._used.get(slab)) is None:
            used = self._used[slab] = bytearray(slots_per_slab(slab.slot_kib) if slab.slot_kib else 0)
        return used
