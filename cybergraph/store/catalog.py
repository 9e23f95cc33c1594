"""The catalogue of a disk store: which leaf lies in which slot, and the nodes themselves.

leaves   CID -> slab, slot, length
nodes    CID -> the node's bytes
slabs    slab -> slots in use or freed, from the start of the file
free     slab, slot -> nothing

All methods run inside a transaction of the store's database.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from ..cid import Buffer, Cid
from ..database import Database, Transaction
from .slab import SlabId, slots_per_slab

TABLES: Final = {"leaves": False, "nodes": False, "slabs": False, "free": False}

_PLACE: Final = Struct("<IIII")
_SLAB_KEY: Final = Struct(">II")
_SLOT_KEY: Final = Struct(">III")
_SIZE_KEY: Final = Struct(">I")
_COUNT: Final = Struct("<I")


class Place(NamedTuple):
    """Where a leaf lies."""

    slab: SlabId
    slot: int
    size_bytes: int

    @property
    def offset(self) -> int:
        """First byte within the slab's file."""
        return self.slot * self.slab.slot_bytes


class Catalog:
    """Table access for one store."""

    def __init__(self, database: Database) -> None:
        self._leaves, self._nodes = database["leaves"], database["nodes"]
        self._slabs, self._free = database["slabs"], database["free"]

    def has(self, txn: Transaction, cid: Cid) -> bool:
        """Say whether a block is catalogued."""
        return txn.get(cid, db=self._leaves if cid.codec == "raw" else self._nodes) is not None

    def place(self, txn: Transaction, cid: Cid) -> Place | None:
        """Find a leaf."""
        row = txn.get(cid, db=self._leaves)
        return None if row is None else unpack_place(row)

    def node(self, txn: Transaction, cid: Cid) -> bytes | None:
        """Read a node."""
        data: bytes | None = txn.get(cid, db=self._nodes)
        return data

    def put_node(self, txn: Transaction, cid: Cid, data: Buffer) -> None:
        """Add a node, or write it again."""
        txn.put(cid, data, db=self._nodes)

    def put_leaf(self, txn: Transaction, cid: Cid, place: Place) -> None:
        """Add a leaf whose bytes are durable. A slot it had before becomes free for later transactions."""
        if (old := self.place(txn, cid)) is not None:
            self._release(txn, old)
        slab, slot, size_bytes = place
        txn.put(cid, _PLACE.pack(*slab, slot, size_bytes), db=self._leaves)

    def remove(self, txn: Transaction, cid: Cid) -> bool:
        """Forget a block, and say whether it was here. Its slot becomes free for later transactions."""
        if cid.codec != "raw":
            return bool(txn.delete(cid, db=self._nodes))
        if (place := self.place(txn, cid)) is None:
            return False
        self._release(txn, place)
        return bool(txn.delete(cid, db=self._leaves))

    def allocate(self, txn: Transaction, slot_kib: int, count: int) -> list[tuple[SlabId, int]]:
        """Take slots of one size: freed ones first, in order, then fresh ones.

        Call it before anything is released in the same transaction: a slot may only be written after the
        commit that freed it.
        """
        taken: list[tuple[SlabId, int]] = []
        with txn.cursor(self._free) as cursor:
            found = cursor.set_range(_SIZE_KEY.pack(slot_kib))
            while found and len(taken) < count and cursor.key().startswith(_SIZE_KEY.pack(slot_kib)):
                kib, number, slot = _SLOT_KEY.unpack(cursor.key())
                taken.append((SlabId(kib, number), slot))
                found = cursor.delete()
        number, used = self._last_slab(txn, slot_kib)
        limit = slots_per_slab(slot_kib)
        while len(taken) < count:
            if used >= limit:
                number, used = number + 1, 0
            fresh = min(count - len(taken), limit - used)
            slab = SlabId(slot_kib, number)
            taken.extend((slab, slot) for slot in range(used, used + fresh))
            used += fresh
            txn.put(_SLAB_KEY.pack(*slab), _COUNT.pack(used), db=self._slabs)
        return taken

    def _last_slab(self, txn: Transaction, slot_kib: int) -> tuple[int, int]:
        with txn.cursor(self._slabs) as cursor:
            found = cursor.set_range(_SLAB_KEY.pack(slot_kib + 1, 0))
            found = cursor.prev() if found else cursor.last()
            if found and cursor.key().startswith(_SIZE_KEY.pack(slot_kib)):
                return _SLAB_KEY.unpack(cursor.key())[1], _COUNT.unpack(cursor.value())[0]
        return 0, 0

    def _release(self, txn: Transaction, place: Place) -> None:
        txn.put(_SLOT_KEY.pack(*place.slab, place.slot), b"", db=self._free)


def unpack_place(row: bytes) -> Place:
    """Read a row of the `leaves` table."""
    kib, number, slot, size_bytes = _PLACE.unpack(row)
    return Place(SlabId(kib, number), slot, size_bytes)


def places(database: Database) -> Iterator[tuple[Cid, Place]]:
    """List every leaf with its place."""
    return ((Cid(key), unpack_place(row)) for key, row in database.items("leaves"))


def slabs(database: Database) -> Iterator[tuple[SlabId, int]]:
    """List every slab with the number of its slots that were ever used."""
    for key, row in database.items("slabs"):
        yield SlabId(*_SLAB_KEY.unpack(key)), _COUNT.unpack(row)[0]


def free_slots(database: Database) -> Iterator[tuple[SlabId, int]]:
    """List every free slot."""
    for key in database.keys("free"):
        kib, number, slot = _SLOT_KEY.unpack(key)
        yield SlabId(kib, number), slot
