"""Reads of one block: verified, and right also beside a slot that is being used again."""

from pathlib import Path

from ..cid import HASHES, Cid
from ..database import Database, Transaction
from ..diskerrors import disk_errors
from ..errors import DigestMismatch
from .base import damaged, not_found
from .catalog import Catalog, Place
from .slab import SlabFiles


class BlockReader:
    """Reads blocks of one store one by one, from any thread."""

    def __init__(self, path: Path, database: Database, catalog: Catalog, slabs: SlabFiles) -> None:
        self._path = path
        self._database = database
        self._catalog = catalog
        self._slabs = slabs

    def read(self, cid: Cid) -> tuple[bytes, Place | None]:
        """Give a block's bytes, verified, and the place of a leaf.

        A slot that was used again between the lookup and the read shows as a mismatch, so the block is looked up again
        for as long as anything was committed meanwhile. Raises `BlockNotFound`; `DigestMismatch` for damage.
        """
        before = None
        while True:
            with self._database.read() as txn:
                version = txn.id()
                place = self._catalog.place(txn, cid) if cid.codec == "raw" else None
                data = None if cid.codec == "raw" else self._catalog.node(txn, cid)
            if place is not None:
                data = self._in_slab(place)
            if data is None:
                raise not_found(cid)
            if is_sound(cid, data):
                return data, place
            if version == before:  # nothing was committed between two looks, so the slot was this leaf's
                raise self._damage(cid, len(data))
            before = version

    def stored(self, txn: Transaction, cid: Cid) -> tuple[bytes | None, Place | None]:
        """Give the bytes of a block as they are, not verified, and the place of a leaf; None for what is not here."""
        place = self._catalog.place(txn, cid)
        return (self._catalog.node(txn, cid) if place is None else self._in_slab(place)), place

    def _in_slab(self, place: Place) -> bytes:
        with disk_errors(self._path):
            return self._slabs.read_bytes(*place)

    def _damage(self, cid: Cid, got_bytes: int) -> DigestMismatch:
        """Say what is wrong with a block of which so many bytes could be read."""
        with self._database.read() as txn:
            place = self._catalog.place(txn, cid)
        if place is None:
            return damaged(cid, "its bytes in the catalogue do not hash to it")
        name, size_bytes = place.slab.file_name, self._slabs.size_bytes(place.slab)
        if got_bytes == place.size_bytes:
            return damaged(cid, f"the bytes in slot {place.slot} of {name} do not hash to it")
        if size_bytes is None:
            return damaged(cid, f"{name} is missing", unreadable=True)
        if size_bytes < place.offset + place.size_bytes:
            return damaged(cid, f"{name} is cut short at {size_bytes} bytes", unreadable=True)
        return damaged(cid, f"slot {place.slot} of {name} cannot be read", unreadable=True)


def is_sound(cid: Cid, data: bytes) -> bool:
    """Say whether bytes hash to a CID."""
    return HASHES[cid.hash_name](data) == cid.digest
