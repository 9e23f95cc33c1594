"""Rows in device memory, and the order in which streams touch them.

Of each row it is known which events whoever touches it next, on whichever stream, comes after: `order` waits for them,
`passed` says what follows. Kernels reach rows through block tables, and `settle` has their stream wait.
"""

from collections.abc import Iterable

from torch import Tensor

from ..geometry import Geometry
from ..quant import packing_of
from ..rows import ARCHIVED, Rows
from .device import Device, Event, Stream


class DeviceRows(Rows):
    """Fixed number of rows in device memory.

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
        self._spans_bytes = g.leaf_spans
        self._used: list[Event | None] = [None] * capacity_blocks
        """Follows the last use by the compute stream before the row lost its last user."""
        self._moved: dict[int, Event] = {}
        """Follows the last copy from or to a row, where the compute stream has not waited for it."""
        super().__init__(capacity_blocks)

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
            if not self._moved:  # as in most steps, whose tables are long
                return
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
