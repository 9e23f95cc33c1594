"""The catalogue of a disk store: which leaf lies in which slot, and the nodes themselves.

leaves   CID -> slab, slot, length
nodes    CID -> the node's bytes
stamp    "slots" -> random bytes of the last commit that took or freed slots

Which slots are free is not written down: it is what no row of `leaves` names, so the two cannot disagree.
All methods run inside a transaction of the store's database.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from ..cid import Buffer, Cid
from ..database import Database, Table, Transaction
from .slab import SlabId

READ_TABLES: Final = {"leaves": False, "nodes": False}
TABLES: Final = {**READ_TABLES, "stamp": False}

PLACE_ROW: Final = Struct("<IIII")
_STAMP_KEY: Final = b"slots"


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
        self._database = database

    @property
    def _leaves(self) -> Table:
        return self._database["leaves"]  # asked for each time: the database may have been opened anew meanwhile

    @property
    def _nodes(self) -> Table:
        return self._database["nodes"]

    def place(self, txn: Transaction, cid: Cid) -> Place | None:
        """Find a leaf."""
        row = txn.get(cid, db=self._leaves)
        return None if row is None else unpack_place(row)

    def node(self, txn: Transaction, cid: Cid) -> bytes | None:
        """Read a node."""
        data: bytes | None = txn.get(cid, db=self._nodes)
        return data

    def node_size_bytes(self, txn: Transaction, cid: Cid) -> int | None:
        """Find a node and give its length."""
        data = self.node(txn, cid)
        return None if data is None else len(data)

    def put_node(self, txn: Transaction, cid: Cid, data: Buffer) -> None:
        """Add a node, or write it again."""
        txn.put(cid, data, db=self._nodes)

    def put_leaf(self, txn: Transaction, cid: Cid, place: Place) -> None:
        """Add a leaf whose bytes are durable, or give it another slot."""
        slab, slot, size_bytes = place
        txn.put(cid, PLACE_ROW.pack(*slab, slot, size_bytes), db=self._leaves)

    def remove(self, txn: Transaction, cid: Cid) -> bool:
        """Forget a block, and say whether it was here."""
        return bool(txn.delete(cid, db=self._leaves if cid.codec == "raw" else self._nodes))

    def node_bytes(self, txn: Transaction) -> int:
        """Give the size of the pages that hold nodes."""
        stat = txn.stat(self._nodes)
        return int(stat["psize"] * (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]))

    def rows(self, txn: Transaction) -> Iterator[tuple[int, int, int, int]]:
        """List slot KiB, slab number, slot and length of every leaf, in no order that means anything."""
        with txn.cursor(self._leaves) as cursor:
            yield from PLACE_ROW.iter_unpack(b"".join(cursor.iternext(keys=False)))

    def stamp(self, txn: Transaction) -> bytes | None:
        """Name the state of the slots: equal stamps, equal slots."""
        found: bytes | None = txn.get(_STAMP_KEY, db=self._database["stamp"])
        return found

    def put_stamp(self, txn: Transaction, stamp: bytes) -> None:
        """Name the state of the slots that this transaction makes."""
        txn.put(_STAMP_KEY, stamp, db=self._database["stamp"])


def unpack_place(row: bytes) -> Place:
    """Read a row of the `leaves` table."""
    kib, number, slot, size_bytes = PLACE_ROW.unpack(row)
    return Place(SlabId(kib, number), slot, size_bytes)


def places(database: Database) -> Iterator[tuple[Cid, Place]]:
    """List every leaf with its place."""
    return ((Cid(key), unpack_place(row)) for key, row in database.items("leaves"))
