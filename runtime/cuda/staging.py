"""Page-locked host memory in slots of one size, which the device copies from and to while the host goes on.

A slot that was given back may still be under copy: its event says until when. Who writes to it by a stream has the
stream wait for that; who touches it on the host waits there.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition

from torch import Tensor

from ...cybergraph.errors import TierFull
from ..geometry import Geometry
from .device import Device, Event, Stream


class Slot:
    """One slot, for as long as somebody has it."""

    __slots__ = ("_ready", "number", "tensor", "view")

    def __init__(self, number: int, tensor: Tensor) -> None:
        self.number = number
        self.tensor = tensor
        """uint8 [slot_bytes], for copies."""
        self.view: memoryview = tensor.numpy().data
        """The same bytes, for the host, after `settle`."""
        self._ready: Event | None = None

    def order(self, stream: Stream) -> None:
        """Have a stream go on only after the copies that touch the slot."""
        if self._ready is not None:
            stream.wait(self._ready)

    def passed(self, event: Event) -> None:
        """Say which event follows the last copy that touches the slot; its stream was ordered after those before."""
        self._ready = event

    def settle(self) -> None:
        """Have the host wait for the copies that touch the slot."""
        if self._ready is not None:
            self._ready.synchronize()
            self._ready = None


class Slots:
    """A fixed number of slots. The one that was given back first is taken first: its copies are done soonest.

    Every method may be called from any thread; a slot is for one thread at a time.
    """

    def __init__(self, device: Device, slot_bytes: int, count: int, *, may_be_fewer: bool = False) -> None:
        """Set the memory aside: half as much, or half of that, where `may_be_fewer` and it is refused, down to none.

        Raises `TierFull`.
        """
        memory: Tensor | None = None
        while memory is None:
            try:
                memory = device.pinned(max(1, count * slot_bytes))
            except TierFull:
                if not may_be_fewer or not count:
                    raise
                count //= 2
        self.slot_bytes, self.count = slot_bytes, count
        slots = (Slot(i, memory[i * slot_bytes : (i + 1) * slot_bytes]) for i in range(count))
        self._free: deque[Slot] = deque(slots)
        self._changed = Condition()

    @property
    def used(self) -> int:
        """Slots that somebody has."""
        return self.count - len(self._free)

    def take(self) -> Slot:
        """Take a slot; it may still be under copy. Raises `TierFull` where all are taken."""
        with self._changed:
            if not self._free:
                raise TierFull(
                    f"all {self.count} slots of host memory are in use",
                    hint="give host memory more bytes",
                    count=self.count,
                )
            return self._free.popleft()

    def give(self, slot: Slot) -> None:
        """Give a slot back, also while it is under copy."""
        with self._changed:
            self._free.append(slot)
            self._changed.notify()

    @contextmanager
    def turn(self) -> Iterator[Slot]:
        """Wait for a slot, and for the copies that touch it, and have it for a while. The host may write to it."""
        with self._changed:
            self._changed.wait_for(lambda: self._free)
            slot = self._free.popleft()
        try:
            slot.settle()
            yield slot
        finally:
            self.give(slot)

    def check_integrity(self) -> list[str]:
        """List what is wrong: each free slot is free once."""
        with self._changed:
            numbers = [slot.number for slot in self._free]
        return [] if len(set(numbers)) == len(numbers) else ["a slot is free twice"]


class HostRow:
    """The bytes of a block in page-locked host memory. Close it to give the memory back."""

    __slots__ = ("_geometry", "_give", "_slot")

    def __init__(self, slot: Slot, geometry: Geometry, give: Callable[[Slot], None]) -> None:
        self._slot: Slot | None = slot
        self._geometry, self._give = geometry, give

    @property
    def slot(self) -> Slot:
        """Where the bytes are. Raises `RuntimeError` after `close`."""
        if self._slot is None:
            raise RuntimeError("the row was given back")
        return self._slot

    def leaves(self) -> list[memoryview]:
        """See `HostBlock`. The host waits for the copies that touch them."""
        self.slot.settle()
        return [self.slot.view[start:end] for start, end in self._geometry.leaf_spans]

    def close(self) -> None:
        """Give the memory back, also while copies touch it. Harmless twice."""
        slot, self._slot = self._slot, None
        if slot is not None:
            self._give(slot)
