"""The durable store: leaves in slab files, nodes and the catalogue in LMDB.

The order of a write is its safety: the slots are written and synced, then the catalogue entries are
committed, then the call returns. A kill at any point leaves slots that nothing names, and they are simply
used again. A delete is committed before its slots may be written. The catalogue's write transaction is the
lock between writers; readers take no lock and check the hash of everything they read, so a slot that was
reused under a reader shows as a mismatch and is looked up once more.

    store/FORMAT               "cyberkv store 1"
    store/catalog/             LMDB
    store/slab-240-0.kvd       leaves of 237 to 240 KiB
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Final

from ..cid import HASHES, Buffer, Cid
from ..database import Database, Transaction, disk_error
from ..errors import CyberKVError, Refused
from .base import Finding, Store, check_block, check_size, damaged, not_found
from .catalog import TABLES, Catalog, Place
from .format import open_folder
from .layout import check_layout
from .reading import Wanted, read_leaves
from .slab import SlabFiles, slot_kib

BATCH_BYTES: Final = 64 << 20
BATCH_BLOCKS: Final = 4096
"""Most that one transaction writes: bounds the memory of a generator and the time the writer lock is held."""


def _no_step(_: str) -> None:
    pass


class DiskStore(Store):
    """Blocks under one folder, for any number of processes at once. Open it after a fork, not before."""

    def __init__(self, path: Path, *, read_only: bool = False, on_step: Callable[[str], None] = _no_step) -> None:
        """Open or make a store. `on_step` is told the name of each step of a write, for fault injection.

        Raises `NotFound` for a read-only open of nothing, `UnsupportedFormat`, `Corrupt`.
        """
        open_folder(path, read_only=read_only)
        self._path = path
        self._read_only = read_only
        self._on_step = on_step
        self._database = Database.open(path / "catalog", TABLES, read_only=read_only)
        self._catalog = Catalog(self._database)
        self._slabs = SlabFiles(path, read_only=read_only)
        self._closed = False
        self._damaged: set[Cid] = set()  # seen damaged by this process, so not here until stored again

    def put_many(self, blocks: Iterable[tuple[Cid, Buffer]], *, hashed: bool = False) -> int:
        """See `Store`. A block that this process has seen damaged is stored again."""
        self._check_writable()
        return sum(self._put_batch(batch) for batch in _batches(blocks, hashed=hashed))

    def _put_batch(self, batch: dict[Cid, Buffer]) -> int:
        count = self._database.write(lambda txn: self._write(txn, batch))
        self._damaged.difference_update(batch)
        self._on_step("committed")
        return count

    def _write(self, txn: Transaction, batch: dict[Cid, Buffer]) -> int:
        self._on_step("opened")
        fresh = {cid: data for cid, data in batch.items() if not self._has(txn, cid)}
        by_slot: dict[int, list[Cid]] = {}
        for cid, data in fresh.items():
            if cid.codec == "raw":
                by_slot.setdefault(slot_kib(memoryview(data).nbytes), []).append(cid)
        placed: dict[Cid, Place] = {}
        for kib, cids in by_slot.items():
            for cid, (slab, slot) in zip(cids, self._catalog.allocate(txn, kib, len(cids)), strict=True):
                placed[cid] = Place(slab, slot, memoryview(fresh[cid]).nbytes)
        self._on_step("allocated")
        with self._disk_errors():
            self._write_slots(placed, fresh)
        for cid, data in fresh.items():
            if cid in placed:
                self._catalog.put_leaf(txn, cid, placed[cid])
            else:
                self._catalog.put_node(txn, cid, data)
        self._on_step("catalogued")
        return len(fresh)

    def _write_slots(self, placed: dict[Cid, Place], data: dict[Cid, Buffer]) -> None:
        # Slots side by side have one difference between slot and position in the list.
        for (slab, _), run in groupby(
            enumerate(placed.items()), key=lambda each: (each[1][1].slab, each[1][1].slot - each[0])
        ):
            cids, places = zip(*(each for _, each in run), strict=True)
            self._slabs.reserve(slab, places[-1].slot + 1)
            self._slabs.write(slab, places[0].slot, [data[cid] for cid in cids])
            self._on_step("written")
        for slab in {place.slab for place in placed.values()}:
            self._slabs.sync(slab)
            self._on_step("synced")

    def get(self, cid: Cid) -> bytes:
        """See `Store`."""
        for _ in range(2):  # again, if the slot was given to another leaf between lookup and read
            if (data := self._read(cid)) is None:
                raise not_found(cid)
            if HASHES[cid.hash_name](data) == cid.digest:
                return data
        self._damaged.add(cid)
        raise damaged(cid, self._why_damaged(cid))

    def _read(self, cid: Cid) -> bytes | None:
        with self._database.read() as txn:
            if cid.codec != "raw":
                return self._catalog.node(txn, cid)
            place = self._catalog.place(txn, cid)
        return None if place is None else self._slabs.read_bytes(place.slab, place.offset, place.size_bytes)

    def _why_damaged(self, cid: Cid) -> str:
        with self._database.read() as txn:
            place = self._catalog.place(txn, cid)
        if place is None:
            return "its bytes in the catalogue do not hash to it"
        size_bytes = self._slabs.size_bytes(place.slab)
        if size_bytes is None:
            return f"{place.slab.file_name} is missing"
        if size_bytes < place.offset + place.size_bytes:
            return f"{place.slab.file_name} is cut short at {size_bytes} bytes"
        return f"the bytes in slot {place.slot} of {place.slab.file_name} do not hash to it"

    def get_into(self, cids: Sequence[Cid], out: Sequence[memoryview]) -> None:
        """See `Store`. Leaves stored one after the other are read in runs of about a megabyte."""
        wanted: list[Wanted] = []
        with self._database.read() as txn:
            for cid, target in zip(cids, out, strict=True):
                if cid.codec != "raw":
                    continue
                if (place := self._catalog.place(txn, cid)) is None:
                    raise not_found(cid)
                check_size(cid, place.size_bytes, target)
                wanted.append(Wanted(cid, place, target.cast("B")))
        again = [(each.cid, each.target) for each in read_leaves(self._slabs, wanted)]
        nodes = [(cid, target) for cid, target in zip(cids, out, strict=True) if cid.codec != "raw"]
        for cid, target in again + nodes:
            super().get_into([cid], [target])

    def has(self, cid: Cid) -> bool:
        """See `Store`. A block that this process has seen damaged is not here."""
        with self._database.read() as txn:
            return self._has(txn, cid)

    def missing(self, cids: Iterable[Cid]) -> list[Cid]:
        """See `Store`."""
        asked = list(cids)
        with self._database.read() as txn:
            return [cid for cid in asked if not self._has(txn, cid)]

    def _has(self, txn: Transaction, cid: Cid) -> bool:
        return self._catalog.has(txn, cid) and cid not in self._damaged

    def size_bytes(self, cid: Cid) -> int | None:
        """See `Store`. A block that this process has seen damaged is not here."""
        if cid in self._damaged:
            return None
        with self._database.read() as txn:
            if cid.codec == "raw":
                place = self._catalog.place(txn, cid)
                return None if place is None else place.size_bytes
            data = self._catalog.node(txn, cid)
            return None if data is None else len(data)

    def cids(self, prefix: bytes = b"") -> Iterator[Cid]:
        """See `Store`. Nodes come before leaves."""
        for table in ("nodes", "leaves"):
            yield from map(Cid, self._database.keys(table, prefix))

    def delete_many(self, cids: Iterable[Cid]) -> int:
        """See `Store`. The slots are used again by later writes; files do not shrink."""
        self._check_writable()
        named = list(cids)
        count = self._database.write(lambda txn: sum(self._catalog.remove(txn, cid) for cid in named))
        self._damaged.difference_update(named)
        return count

    def check(self) -> Iterator[Finding]:
        """See `Store`."""
        return check_layout(self._database, self._slabs)

    def close(self) -> None:
        """See `Store`."""
        self._slabs.close()
        if not self._closed:  # the database counts its users
            self._closed = True
            self._database.close()

    def _check_writable(self) -> None:
        if self._read_only:
            raise Refused(f"store {self._path} is open read-only", hint="open it for writing", path=str(self._path))

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except CyberKVError:
            raise
        except OSError as error:
            raise disk_error(self._path, error) from error


def _batches(blocks: Iterable[tuple[Cid, Buffer]], *, hashed: bool) -> Iterator[dict[Cid, Buffer]]:
    batch: dict[Cid, Buffer] = {}
    size_bytes = 0
    for cid, data in blocks:
        check_block(cid, data, hashed=hashed)
        block_bytes = memoryview(data).nbytes
        if batch and (size_bytes + block_bytes > BATCH_BYTES or len(batch) >= BATCH_BLOCKS):
            yield batch
            batch, size_bytes = {}, 0
        batch[cid] = data
        size_bytes += block_bytes
    if batch:
        yield batch
