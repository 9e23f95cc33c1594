"""The paged pool in device memory, byte for byte the rows of the host's `Pool`, and the block tables over its rows.

Rows are touched by several streams. Of each row the pool knows the events that whoever touches it next, on whichever
stream, comes after: `order` waits for them, `passed` says what follows. Kernels reach rows through block tables only,
and `BlockTables.set` has the compute stream wait. The pool sees row numbers, never hashes.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Self

from torch import Tensor

from ...cybergraph.errors import TierFull
from ..geometry import Geometry
from ..pool import ARCHIVED, Rows
from ..quant import packing_of
from .device import ENTRY_DTYPE, Device, Event, Stream
from .staging import leaf_spans

FREE_PERCENT: Final = 80
"""Of the device memory that is free, where no size is given. The rest is for what kernels work in."""

PADDING: Final = 0
"""Stands in a block table where there is no block: a row that exists, so that what reads too far reads something."""


class DevicePool(Rows):
    """Fixed number of rows in device memory. Verbs and counts are those of `Pool`.

    A row that loses its last user counts as used by the compute stream until then.
    """

    def __init__(self, device: Device, geometry: Geometry, capacity_blocks: int) -> None:
        """Set the memory aside. Raises `TierFull`."""
        g = geometry
        self.device, self.geometry, self.packing = device, geometry, packing_of(geometry)
        memory = device.empty(max(1, capacity_blocks) * g.block_bytes)[: capacity_blocks * g.block_bytes]
        self.bytes: Tensor = memory.view(capacity_blocks, g.block_bytes)
        """uint8 [capacity_blocks, block_bytes]."""
        self.rows: Tensor = memory.view(self.packing.stored_dtype).view(
            capacity_blocks, g.num_layers, 2, g.block_size, g.num_kv_heads, self.packing.width
        )
        """The same bytes, for kernels: [capacity_blocks, num_layers, K|V, block_size, kv_heads, width]."""
        self._spans_bytes = leaf_spans(g)
        self._used: list[Event | None] = [None] * capacity_blocks
        """Follows the last use by the compute stream before the row lost its last user."""
        self._moved: dict[int, Event] = {}
        """Follows the last copy from or to a row, where the compute stream has not waited for it."""
        super().__init__(capacity_blocks)

    @classmethod
    def sized(cls, device: Device, geometry: Geometry, device_memory_bytes: int | None = None) -> Self:
        """Make a pool within `device_memory_bytes`, by default `FREE_PERCENT` of what is free. Raises `TierFull`."""
        budget_bytes = device_memory_bytes
        if budget_bytes is None:
            budget_bytes = device.free_bytes() * FREE_PERCENT // 100
        if budget_bytes < geometry.block_bytes:
            raise TierFull(
                f"{budget_bytes} bytes of device memory, and a block takes {geometry.block_bytes}",
                hint="give the device pool more bytes, or choose a smaller block size",
                device_memory_bytes=budget_bytes,
            )
        return cls(device, geometry, budget_bytes // geometry.block_bytes)

    def release(self, row: int) -> None:
        """Count one user less. The last one's kernels, as far as they are queued now, come before any other use."""
        with self.lock:
            try:
                if row != ARCHIVED and self.users(row) == 1:
                    self._used[row] = self._mark()
            finally:
                super().release(row)

    def _mark(self) -> Event | None:
        try:
            return self.device.compute.record()
        except BaseException:
            self.device.compute.synchronize()
            raise

    def order(self, rows: Iterable[int], stream: Stream) -> None:
        """Have a stream go on only after what touched some rows before."""
        with self.lock:
            events = {
                id(event): event
                for row in rows if row != ARCHIVED
                for event in (self._used[row], self._moved.get(row)) if event is not None
            }  # fmt: skip
        for event in events.values():
            stream.wait(event)

    def settle(self, rows: Iterable[int]) -> None:
        """Have the compute stream go on only after the copies that touch some rows, which have users."""
        with self.lock:
            moved = {row: self._moved[row] for row in self._moved.keys() & rows}
            for event in {id(event): event for event in moved.values()}.values():
                self.device.compute.wait(event)
            for row in moved:  # from now on, what comes after the compute stream comes after the copies
                del self._moved[row]

    def passed(self, rows: Iterable[int], event: Event) -> None:
        """Say which event follows a copy from or to some rows; its stream was ordered after what was before."""
        with self.lock:
            for row in rows:
                self._used[row], self._moved[row] = None, event

    def leaf(self, row: int, group: int) -> Tensor:
        """Give the bytes of one leaf of a row: uint8, contiguous."""
        start, end = self._spans_bytes[group]
        return self.bytes[row, start:end]


class BlockTables:
    """Which rows hold the blocks of each sequence, on the device, for kernels: int32 [sequences, width].

    What changes is written on the compute stream, so kernels launched before see the table as it was. For one thread.
    """

    def __init__(self, pool: DevicePool, sequences: int, width: int) -> None:
        """Set the memory aside: `width` blocks for each sequence, more when they are needed. Raises `TierFull`."""
        self._pool, self._device = pool, pool.device
        self._known: list[list[int]] = [[] for _ in range(sequences)]
        self._extents = [0] * sequences
        """Entries that may be something else than padding."""
        self.tensor = self._padded(width)
        """Good until a call of `set`."""

    def set(self, sequence: int, table: list[int]) -> None:
        """Have a sequence read, and write, the rows of its page table; only entries that differ are written.

        Call it before each launch: the compute stream goes on only after the copies that touch the rows now. Layers
        that are on their way are waited for by `Loading.take`. Archived blocks read as padding. Raises `TierFull`, and
        then nothing has changed.
        """
        self._pool.settle(table)
        known, extent = self._known[sequence], self._extents[sequence]
        same = min(len(known), len(table))
        if known[:same] != table[:same]:
            same = next(i for i, (old, new) in enumerate(zip(known, table, strict=False)) if old != new)
        if len(table) > self.tensor.shape[1]:
            self._widen(max(len(table), 2 * self.tensor.shape[1]))
        entries = _entries(table[same:]) + [PADDING] * (extent - len(table))
        if entries:
            del known[same:]  # should the next lines fail, all from there on is written again
            self._extents[sequence] = same + len(entries)
            self._device.upload(self.tensor[sequence, same : same + len(entries)], entries, self._device.compute)
            known += table[same:]
            self._extents[sequence] = len(table)

    def _padded(self, width: int) -> Tensor:
        sequences = len(self._known)
        count = sequences * width
        memory = self._device.empty(max(1, count) * ENTRY_DTYPE.itemsize).view(ENTRY_DTYPE)[:count]
        if count:
            self._device.upload(memory, [PADDING] * count, self._device.compute)
        return memory.view(sequences, width)

    def _widen(self, width: int) -> None:
        wider = self._padded(width)
        for sequence, known in enumerate(self._known):
            if known:
                self._device.upload(wider[sequence, : len(known)], _entries(known), self._device.compute)
        self.tensor = wider


def _entries(table: Sequence[int]) -> list[int]:
    return [PADDING if row == ARCHIVED else row for row in table]
