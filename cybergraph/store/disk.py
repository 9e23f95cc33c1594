"""The durable store: leaves in slab files, nodes and the catalogue in LMDB.

The order of a write is its safety: the slots are written and synced, then the catalogue entries are
committed, then the call returns. A kill at any point leaves slots that nothing names, and they are simply
used again. A delete is committed before its slots may be written. The catalogue's write transaction is the
lock between writers; readers take no lock and check the hash of everything they read (`lookup`, `reading`).

    store/FORMAT               "cyberkv store 2"
    store/catalog/             LMDB
    store/slab-240-0.kvd       leaves of 237 to 240 KiB
    store/WRITERS              the lock that writers share (`lock`)
    store/CAP, clock           most bytes to hold, and what was used when (`room`)
    store/quarantine/          damaged blocks, kept aside
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Final, TypeVar

from ..cid import Buffer, Cid
from ..database import Database, Transaction
from ..diskerrors import disk_errors
from ..errors import Corrupt, DigestMismatch, Refused
from .base import Finding, Store, check_size, not_found
from .batches import batches, most_bytes
from .catalog import READ_TABLES, TABLES, Catalog, Place, places
from .format import CATALOG_NAME, FORMAT, open_folder, write_format
from .layout import check_layout
from .lock import WriterLock
from .lookup import BlockReader, is_sound
from .reading import LeafReader, Wanted
from .slab import SlabFiles, slot_kib, takes_direct
from .slots import STAMP_BYTES, Slots
from .writing import LeafWriter, Placed

STEPS: Final = {
    "opened": "the write transaction has begun",
    "allocated": "slots are chosen, in memory only",
    "reserved": "a slab file is long enough; once for each",
    "staged": "up to 16 MiB of leaves are checked and ready to be written",
    "written": "a run of slots was handed to the kernel",
    "synced": "a slab file is durable; once for each",
    "catalogued": "the entries are in the transaction, not committed",
    "committed": "the batch is durable and about to be acknowledged",
    "removing": "entries are deleted in the transaction, not committed",
    "removed": "the deletion is durable; the slots may be written from now on",
}
"""The steps of `put_many`, in order for each batch, and of `delete_many`, as `on_step` is told them."""

T = TypeVar("T")


def _no_step(_: str) -> None:
    pass


def _no_touch(_: Sequence[Place]) -> None:
    pass


def _no_limit(_: int, __: Collection[Cid]) -> None:
    pass


class DiskStore(Store):
    """Blocks under one folder, for any number of processes at once. Open it after a fork, not before."""

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool = False,
        on_step: Callable[[str], None] = _no_step,
        on_touch: Callable[[Sequence[Place]], None] = _no_touch,
        make_room: Callable[[int, Collection[Cid]], None] = _no_limit,
    ) -> None:
        """Open or make a store.

        `on_step` is told the name of each step of a write (`STEPS`), for fault injection. `on_touch` is told the
        places of leaves that were read, written or found to be here. `make_room` is told, before a batch is
        written and outside any transaction, how many bytes it would add and what it consists of; it may delete
        other blocks, or raise `TierFull`.

        Raises `NotFound` for a read-only open of nothing, `UnsupportedFormat`, `Corrupt`.
        """
        found = open_folder(path, read_only=read_only)
        self.path = path
        self._read_only = read_only
        self._on_step = on_step
        self.on_touch = on_touch
        self.make_room = make_room
        tables = READ_TABLES if read_only else TABLES
        self._database = Database.open(path / CATALOG_NAME, tables, read_only=read_only)
        self._catalog = Catalog(self._database)
        self._slabs = SlabFiles(path, read_only=read_only, direct=takes_direct(path / CATALOG_NAME / "data.mdb"))
        self._slots = Slots(self._catalog, self._slabs.size_bytes)
        self._blocks = BlockReader(path, self._database, self._catalog, self._slabs)
        self._reader = LeafReader(self._slabs)
        self._writer = LeafWriter(self._slabs, on_step)
        self._closed = False
        self._putting = Lock()
        self._damaged: set[Cid] = set()  # seen damaged by this process, so not here until stored again
        self._writers: WriterLock | None = None
        if not read_only:
            self._writers = self._join(found)

    def _join(self, found: str | None) -> WriterLock:
        try:
            with disk_errors(self.path):
                self._own(found)
                return WriterLock(self.path)
        except BaseException:
            self.close()
            raise

    def _own(self, found: str | None) -> None:
        """Make a store of the folder, or one of this version. Raises `Corrupt` where its catalogue was lost."""
        with self._database.read() as txn:
            stamp = self._catalog.stamp(txn)
        if stamp is None:
            if found == FORMAT:
                raise Corrupt(
                    f"the catalogue of store {self.path} is gone",
                    hint="put back a copy of the folder `catalog`, or move the store away and fetch again",
                    path=str(self.path),
                )
            self._database.write(lambda txn: self._catalog.put_stamp(txn, os.urandom(STAMP_BYTES)))
        if found != FORMAT:
            write_format(self.path)

    @property
    def writers(self) -> WriterLock:
        """Share of the lock between writers. Raises `Refused` for one that is open read-only."""
        if self._writers is None:
            raise self._read_only_error()
        return self._writers

    def put_many(self, blocks: Iterable[tuple[Cid, Buffer]], *, hashed: bool = False) -> int:
        """See `Store`. A block that this process has seen damaged is stored again."""
        self._check_writable()
        return sum(self._put_batch(batch, hashed=hashed) for batch in batches(blocks))

    def _put_batch(self, batch: dict[Cid, Buffer], *, hashed: bool) -> int:
        with self._putting:  # until it is touched: the room is this batch's, and nothing of it may make room itself
            if self.make_room is not _no_limit:
                new = {cid: batch[cid] for cid in self.missing(batch)}
                if new:
                    self.make_room(most_bytes(new), batch.keys())
            count, found = self._transaction(lambda txn: self._write(txn, batch, hashed=hashed))
            self._damaged.difference_update(batch)
            self._on_step("committed")
            self._touch(found)
        return count

    def _write(
        self, txn: Transaction, batch: dict[Cid, Buffer], *, hashed: bool
    ) -> tuple[int, list[Place | int | None]]:
        """Write what is not here; give the number of blocks written and where all of them lie."""
        self._on_step("opened")
        found = {cid: self._find(txn, cid) for cid in batch}
        new = [cid for cid, each in found.items() if each is None]
        nodes = [cid for cid in new if cid.codec != "raw"]
        by_slot: dict[int, list[Cid]] = {}
        for cid in new:
            if cid.codec == "raw":
                by_slot.setdefault(slot_kib(memoryview(batch[cid]).nbytes), []).append(cid)
        written: list[Placed] = []
        if by_slot:
            self._slots.begin(txn)
        for kib, cids in by_slot.items():
            for cid, (slab, slot) in zip(cids, self._slots.allocate(kib, len(cids)), strict=True):
                written.append(Placed(cid, batch[cid], Place(slab, slot, memoryview(batch[cid]).nbytes)))
        self._on_step("allocated")
        if not hashed:
            for cid in nodes:
                cid.verify(batch[cid])
        with disk_errors(self.path):
            self._writer.write(written, hashed=hashed)
        for cid in nodes:
            self._catalog.put_node(txn, cid, batch[cid])
        for cid, _, place in sorted(written):  # neighbours in the table meet the same pages
            if cid in self._damaged and (old := self._catalog.place(txn, cid)) is not None:
                self._slots.release(old)
            self._catalog.put_leaf(txn, cid, place)
        if by_slot:
            self._slots.end(txn)
        self._on_step("catalogued")
        return len(new), [*found.values(), *(each.place for each in written)]

    def _transaction(self, work: Callable[[Transaction], T]) -> T:
        with self._slots.lock:
            return self._database.write(work)

    def get(self, cid: Cid) -> bytes:
        """See `Store`."""
        try:
            data, place = self._blocks.read(cid)
        except DigestMismatch:
            self._damaged.add(cid)
            raise
        self._damaged.discard(cid)  # its file came back
        if place is not None:
            self.on_touch([place])
        return data

    def get_into(self, cids: Sequence[Cid], out: Sequence[memoryview]) -> None:
        """See `Store`. Leaves stored one after the other are read in runs of about a megabyte."""
        wanted: list[Wanted] = []
        nodes: list[tuple[Cid, memoryview]] = []
        for cid, place, target in zip(cids, self.places(cids), out, strict=True):
            if cid.codec != "raw":
                nodes.append((cid, target))
            elif place is None:
                raise not_found(cid)
            else:
                check_size(cid, place.size_bytes, target)
                wanted.append(Wanted(cid, place, target.cast("B")))
        wanted.sort(key=lambda each: each.place)
        with disk_errors(self.path):
            again = [(each.cid, each.target) for each in self._reader.read(wanted)]
        if wanted:
            self.on_touch([each.place for each in wanted])
        for cid, target in again + nodes:
            super().get_into([cid], [target])

    def places(self, cids: Iterable[Cid]) -> list[Place | None]:
        """Say where leaves lie; None for a node and for what is not here."""
        with self._database.read() as txn:
            return [self._catalog.place(txn, cid) for cid in cids]

    def leaves(self) -> Iterator[tuple[Cid, Place]]:
        """List every leaf with its place. Changes made meanwhile may or may not show."""
        return places(self._database)

    def overwrite_free(self) -> None:
        """Leave nothing of deleted nodes in the catalogue, as `Database.overwrite_free`."""
        self._database.overwrite_free()

    def used_bytes(self) -> int:
        """Give the room that blocks take: whole slots of leaves, and the pages that hold nodes."""
        with self._slots.lock, self._database.read() as txn:  # in this order: a writer may wait for readers
            return self._slots.used_bytes(txn) + self._catalog.node_bytes(txn)

    def has(self, cid: Cid) -> bool:
        """See `Store`. A block that this process has seen damaged is not here."""
        return self.size_bytes(cid) is not None

    def missing(self, cids: Iterable[Cid]) -> list[Cid]:
        """See `Store`."""
        asked = list(cids)
        with self._database.read() as txn:
            found = [self._find(txn, cid) for cid in asked]
        self._touch(found)
        return [cid for cid, each in zip(asked, found, strict=True) if each is None]

    def size_bytes(self, cid: Cid) -> int | None:
        """See `Store`. A block that this process has seen damaged is not here."""
        with self._database.read() as txn:
            found = self._find(txn, cid)
        self._touch([found])
        return found.size_bytes if isinstance(found, Place) else found

    def _find(self, txn: Transaction, cid: Cid) -> Place | int | None:
        """Give the place of a leaf or the length of a node that is here and not known to be damaged."""
        if cid in self._damaged:
            return None
        return self._catalog.place(txn, cid) if cid.codec == "raw" else self._catalog.node_size_bytes(txn, cid)

    def _touch(self, found: Iterable[Place | int | None]) -> None:
        if touched := [each for each in found if isinstance(each, Place)]:
            self.on_touch(touched)

    def cids(self, prefix: bytes = b"") -> Iterator[Cid]:
        """See `Store`. Nodes come before leaves."""
        for table in ("nodes", "leaves"):
            yield from map(Cid, self._database.keys(table, prefix))

    def delete_many(self, cids: Iterable[Cid]) -> int:
        """See `Store`. The slots are used again by later writes; files do not shrink."""
        self._check_writable()
        named = list(dict.fromkeys(cids))
        count = self._transaction(lambda txn: self._remove(txn, named))
        self._on_step("removed")
        self._damaged.difference_update(named)
        return count

    def _remove(self, txn: Transaction, named: list[Cid]) -> int:
        freed = [place for cid in named if cid.codec == "raw" and (place := self._catalog.place(txn, cid))]
        if freed:
            self._slots.begin(txn)
            for place in freed:
                self._slots.release(place)
            self._slots.end(txn)
        count = sum(self._catalog.remove(txn, cid) for cid in sorted(named))  # neighbours share pages
        self._on_step("removing")
        return count

    def drop_damaged(self, cids: Iterable[Cid], *, unreadable: bool = False) -> dict[Cid, bytes]:
        """See `Store`."""
        self._check_writable()
        named = list(dict.fromkeys(cids))
        left: set[Cid] = set()

        def drop(txn: Transaction) -> dict[Cid, bytes]:
            bad: dict[Cid, bytes] = {}
            for cid in named:
                data, place = self._blocks.stored(txn, cid)
                if data is None or is_sound(cid, data):
                    continue
                if place is not None and len(data) < place.size_bytes and not unreadable:
                    left.add(cid)
                else:
                    bad[cid] = data
            self._remove(txn, list(bad))
            return bad

        dropped = self._transaction(drop)
        self._on_step("removed")
        self._damaged.difference_update(set(named) - left)
        return dropped

    def check(self) -> Iterator[Finding]:
        """See `Store`."""
        return check_layout(self._database, self._slabs)

    def close(self) -> None:
        """See `Store`."""
        self._reader.close()
        self._writer.close()
        self._slabs.close()
        if self._writers is not None:
            self._writers.close()
        if not self._closed:  # the database counts its users
            self._closed = True
            self._database.close()

    def _check_writable(self) -> None:
        if self._read_only:
            raise self._read_only_error()

    def _read_only_error(self) -> Refused:
        return Refused(f"store {self.path} is open read-only", hint="open it for writing", path=str(self.path))
