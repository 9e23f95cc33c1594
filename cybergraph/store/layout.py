"""Check a disk store's own structures: files long enough, leaves inside them, no slot given out twice."""

from collections.abc import Iterator

from ..cid import Cid
from ..database import Database
from .base import Finding
from .catalog import places
from .slab import SlabFiles, SlabId, slot_kib, slots_per_slab


def check_layout(database: Database, files: SlabFiles) -> Iterator[Finding]:
    """Report what does not fit together. Nothing is read from the slots; `fsck` hashes the blocks."""
    owners: dict[tuple[SlabId, int], Cid] = {}
    needed: dict[SlabId, int] = {}
    for cid, (slab, slot, size_bytes) in places(database):
        where = f"slot {slot} of {slab.file_name}"
        if slot_kib(size_bytes) != slab.slot_kib or slot >= slots_per_slab(slab.slot_kib):
            yield Finding(cid, "slot", f"{size_bytes} bytes at {where} lie outside what a slab holds")
            continue
        needed[slab] = max(needed.get(slab, 0), slot + 1)
        if (owner := owners.setdefault((slab, slot), cid)) != cid:
            yield Finding(cid, "slot", f"{where} also belongs to {owner}")
    for slab, slots in sorted(needed.items()):
        file_bytes, needed_bytes = files.size_bytes(slab), slots * slab.slot_bytes
        if file_bytes is None:
            yield Finding(None, "slab", f"{slab.file_name} is missing, with {slots} slots")
        elif file_bytes < needed_bytes:
            yield Finding(None, "slab", f"{slab.file_name} has {file_bytes} bytes, {needed_bytes} are in use")
