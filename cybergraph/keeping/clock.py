"""When each slot was last used, in ticks: the order in which leaves are evicted.

A tick is one call on the store, not a time. The ticks live in memory and are written beside the store now and then
and at the end, without a sync: losing them costs only the order. Two processes that write keep the later of their
ticks.

>>> clock, slab = Clock(None), SlabId(64, 0)
>>> clock.touch([Place(slab, 3, 60_000), Place(slab, 4, 60_000)])
>>> [clock.tick(Place(slab, slot, 60_000)) for slot in (3, 4, 5)]
[1, 1, 0]
"""

from array import array
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final

from ..private import open_regular, write_private
from ..store.catalog import Place
from ..store.slab import SlabId, slots_per_slab

FILE_NAME: Final = "clock"
FLUSH_TICKS: Final = 4096
"""Calls after which the ticks are written."""

_MAGIC: Final = b"cyberkv clock 1\n"
_NOW: Final = Struct("<Q")
_ROW: Final = Struct("<III")
_TICK_BYTES: Final = 8
_MOST_TICKS: Final = 1 << 48
"""More than there will ever be: a file that says so is damaged."""


class Clock:
    """Ticks by slot. Calls from several threads at once cost at most a tick."""

    def __init__(self, path: Path | None) -> None:
        """Go on from the file at `path`; without one, start anew and write nothing."""
        self._path = path
        self._rows: dict[SlabId, array[int]] = {}
        self.now = 0
        self._load()
        self.opened = self.now
        """What is later than this was used through this object."""

    def touch(self, places: Iterable[Place]) -> None:
        """Note that these slots were used, all at one time."""
        self.now += 1
        rows, now = self._rows, self.now
        for slab, slot, _ in places:
            row = rows.get(slab)
            if row is None or slot >= len(row):
                row = self._grow(slab, slot)
            if slot < len(row):
                row[slot] = now
        if now % FLUSH_TICKS == 0:
            self.save()

    def tick(self, place: Place) -> int:
        """Give when a slot was last used; 0 if that is not known."""
        row = self._rows.get(place.slab)
        return 0 if row is None or place.slot >= len(row) else row[place.slot]

    def save(self) -> None:
        """Write the ticks. That the disk has no room for them is no error."""
        if self._path is None:
            return
        self._load()
        parts = [_MAGIC, _NOW.pack(self.now)]
        for slab, row in list(self._rows.items()):
            parts += _ROW.pack(*slab, len(row)), row.tobytes()
        with suppress(OSError):
            write_private(self._path, parts, sync=False)

    def _load(self) -> None:
        """Take over what is later in the file. One that is damaged is as good as none."""
        if self._path is None:
            return
        try:
            with open_regular(self._path) as file:
                data = file.read()
        except OSError:
            return
        at = len(_MAGIC) + _NOW.size
        if len(data) < at or not data.startswith(_MAGIC):
            return
        now = _NOW.unpack_from(data, len(_MAGIC))[0]
        if now > _MOST_TICKS:
            return
        self.now = max(self.now, now)
        while at + _ROW.size <= len(data):
            kib, number, slots = _ROW.unpack_from(data, at)
            at += _ROW.size
            if at + slots * _TICK_BYTES > len(data):
                return
            row = array("Q", data[at : at + slots * _TICK_BYTES])
            at += slots * _TICK_BYTES
            if max(row, default=0) > now:
                return
            held = self._rows.get(SlabId(kib, number), array("Q"))
            longer, shorter = (row, held) if len(row) > len(held) else (held, row)
            self._rows[SlabId(kib, number)] = array("Q", map(max, longer, shorter)) + longer[len(shorter) :]

    def _grow(self, slab: SlabId, slot: int) -> "array[int]":
        row = self._rows.setdefault(slab, array("Q"))
        most = slots_per_slab(slab.slot_kib) if slab.slot_kib else 0
        if slot < most:  # else a damaged entry of the catalogue, which must not cost memory
            row.extend([0] * (min(max(slot + 1, 2 * len(row)), most) - len(row)))
        return row
