"""Check a disk store's own structures: files long enough, slots inside them, no slot given out twice."""

from collections.abc import Iterator

from ..cid import Cid
from ..database import Database
from .base import Finding
from .catalog import free_slots, places, slabs
from .slab import SlabFiles, SlabId, slot_kib


def check_layout(database: Database, files: SlabFiles) -> Iterator[Finding]:
    """Report what does not fit together. Nothing is read from the slots; `fsck` hashes the blocks."""
    used = dict(slabs(database))
    for slab, slots in used.items():
        size_bytes, needed_bytes = files.size_bytes(slab), slots * slab.slot_bytes
        if size_bytes is None:
            yield Finding(None, "slab", f"{slab.file_name} is missing, with {slots} slots")
        elif size_bytes < needed_bytes:
            yield Finding(None, "slab", f"{slab.file_name} has {size_bytes} bytes, {needed_bytes} are in use")
    owners: dict[tuple[SlabId, int], Cid] = {}
    for cid, (slab, slot, size_bytes) in places(database):
        where = f"slot {slot} of {slab.file_name}"
        if slot >= used.get(slab, 0) or slot_kib(size_bytes) != slab.slot_kib:
            yield Finding(cid, "slot", f"{size_bytes} bytes at {where} lie outside what is in use")
        elif (owner := owners.setdefault((slab, slot), cid)) != cid:
            yield Finding(cid, "slot", f"{where} also belongs to {owner}")
    for slab, slot in free_slots(database):
        if (slab, slot) in owners:
            yield Finding(owners[slab, slot], "slot", f"slot {slot} of {slab.file_name} is both used and free")
