"""A device of which it is known what was ordered, and which does everything else in the worst order.

Each copy and kernel is an operation on a stream, and runs some time after what the order that was recorded puts before
it: which one is next, and how many run when, is drawn. So where an event is missing, bytes come out wrong. Besides,
each operation and each access of the host carries a vector clock: two that touch the same bytes, one of them writing,
and of which neither comes before the other, are a violation, in whatever order they ran.

The host counts as one thread.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from threading import RLock, get_ident
from typing import Any

import torch
from torch import Tensor

from cyberkv.runtime.cuda.device import ENTRY_DTYPE, Device, Stream, no_pinned, out_of_memory

HOST = 0
Clock = dict[int, int]
"""How far each thread of events is known, by its number; the host's is `HOST`."""


def joined(*clocks: Clock) -> Clock:
    return {who: max(clock.get(who, 0) for clock in clocks) for who in {who for clock in clocks for who in clock}}


@dataclass(eq=False)
class Operation:
    name: str
    after: frozenset["Operation"]
    run: Callable[[], object]
    done: bool = False


@dataclass(frozen=True)
class Access:
    start: int
    end: int
    writes: bool
    who: int
    tick: int
    name: str

    def conflicts(self, other: "Access") -> bool:
        return self.start < other.end and other.start < self.end and (self.writes or other.writes)


@dataclass(eq=False)
class FakeEvent:
    device: "FakeDevice"
    stream: "FakeStream"
    after: frozenset[Operation]
    clock: Clock

    def synchronize(self) -> None:
        self.device.host_waits_for(self.after, self.clock)


@dataclass(eq=False)
class FakeStream:
    device: "FakeDevice"
    number: int
    frontier: frozenset[Operation] = frozenset()
    clock: Clock = field(default_factory=dict)

    def record(self) -> FakeEvent:
        with self.device.enters("record"):
            return FakeEvent(self.device, self, self.frontier, self.clock)

    def wait(self, event: Any) -> None:
        with self.device.enters("wait"):
            if event.stream is not self and self.device.heeds_wait():  # it is behind its own events anyway
                self.frontier |= event.after
                self.clock = joined(self.clock, event.clock)

    def synchronize(self) -> None:
        self.device.host_waits_for(self.frontier, self.clock)


@dataclass(frozen=True)
class Launch:
    """A kernel, and the bytes that it touches."""

    run: Callable[[], object]
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]


@dataclass(eq=False)
class FakeGraph:
    device: "FakeDevice"
    launches: list[Launch]

    def replay(self) -> None:
        for each in self.launches:
            self.device.kernel(each.run, reads=each.reads, writes=each.writes)


class FakeDevice:
    """`draw` decides what runs when; `device_bytes` and `pinned_bytes` are all there is.

    The call whose number is `fails_at` raises `failure` instead, once. The wait whose number is `lost_wait`, of a
    stream or of the host, does not happen.
    """

    def __init__(self, draw: Random, *, device_bytes: int = 1 << 30, pinned_bytes: int = 1 << 30) -> None:
        self.draw, self.left_bytes, self.left_pinned_bytes = draw, device_bytes, pinned_bytes
        self.violations: list[str] = []
        self.host_waits: list[int] = []
        """The thread of each wait of the host."""
        self.waits: list[str] = []
        """Which functions led to each wait, of a stream or of the host."""
        self.calls = self.fails_at = self.lost_wait = 0
        self.failure: BaseException = KeyboardInterrupt()
        self.trail: list[str] = []
        """Names of what ran, in order."""
        self._noted: list[Launch] | None = None
        self.change_pace()
        self._lock = RLock()
        self._pending: list[Operation] = []
        self._accesses: list[Access] = []
        self._ticks: Clock = {}
        self._host: Clock = {}
        self._streams: list[FakeStream] = []
        self._compute = self.stream()

    def change_pace(self) -> None:
        """Draw how many operations run during a call: none unless it is waited for, some, many."""
        self._paces = self.draw.choice(((0,), (0, 0, 1), (0, 1, 3)))

    @property
    def compute(self) -> FakeStream:
        return self._compute

    def stream(self) -> FakeStream:
        stream = FakeStream(self, len(self._streams) + 1)
        self._streams.append(stream)
        return stream

    def empty(self, size_bytes: int) -> Tensor:
        with self.enters("empty"):
            if size_bytes > self.left_bytes:
                raise out_of_memory("the device", size_bytes)
            self.left_bytes -= size_bytes
            return self._fresh(size_bytes, 0xEE)

    def pinned(self, size_bytes: int) -> Tensor:
        with self.enters("pinned"):
            if size_bytes > self.left_pinned_bytes:
                raise no_pinned(size_bytes)
            self.left_pinned_bytes -= size_bytes
            return self._fresh(size_bytes, 0xDD)

    def _fresh(self, size_bytes: int, value: int) -> Tensor:
        """Give memory that may be what another tensor had: its uses are over, as the allocator sees to."""
        memory = torch.full((size_bytes,), value, dtype=torch.uint8)
        start = memory.data_ptr()
        self._accesses = [old for old in self._accesses if not old.start < start + size_bytes or old.end <= start]
        return memory

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]], stream: Any) -> None:
        for target, source in pairs:
            with self.enters("copy"):
                assert target.nbytes == source.nbytes
                self._queue("copy", stream, [source], [target], partial(target.copy_, source))

    def upload(self, target: Tensor, entries: Sequence[int], stream: Any) -> None:
        with self.enters("upload"):
            source = torch.tensor(entries, dtype=ENTRY_DTYPE)
            assert target.shape == source.shape
            self._queue("upload", stream, [], [target], lambda: target.copy_(source))

    def put(self, tensor: Tensor) -> Tensor:
        return tensor

    def capture(self, run: Callable[[], object]) -> FakeGraph:
        self._noted = noted = list[Launch]()
        try:
            run()
        finally:
            self._noted = None
        return FakeGraph(self, noted)

    def free_bytes(self) -> int:
        return self.left_bytes

    def kernel(self, run: Callable[[], object], *, reads: Iterable[Tensor] = (), writes: Iterable[Tensor] = ()) -> None:
        """Launch something on the compute stream that touches these bytes; while it is captured, note it alone."""
        with self.enters("kernel"):
            if self._noted is not None:
                self._noted.append(Launch(run, tuple(reads), tuple(writes)))
                return
            self._queue("kernel", self._compute, reads, writes, run)

    def read(self, tensor: Tensor) -> list[bytes]:
        """Launch a kernel that looks at bytes. The list is empty until it ran."""
        seen: list[bytes] = []
        self.kernel(lambda: seen.append(tensor.contiguous().view(torch.uint8).numpy().tobytes()), reads=[tensor])
        return seen

    def host(self, view: memoryview, *, writes: bool) -> None:
        """Say that the host touches bytes now."""
        with self._lock:
            self._ticks[HOST] = self._host[HOST] = self._ticks.get(HOST, 0) + 1
            self._note(torch.frombuffer(view, dtype=torch.uint8), writes, HOST, self._host, "host")

    def drain(self) -> None:
        """Run all that is queued. No wait of the program's own."""
        with self._lock:
            self._run_until(frozenset(self._pending))
            self._host = joined(self._host, *(stream.clock for stream in self._streams))

    def enters(self, _call: str) -> AbstractContextManager[object]:
        """Count a call; some of what is queued runs meanwhile."""
        with self._lock:
            self.calls += 1
            if self.calls == self.fails_at:
                raise self.failure
            for _ in range(self.draw.choice(self._paces)):
                self._run_one(self._pending)
        return self._lock

    def host_waits_for(self, after: frozenset[Operation], clock: Clock) -> None:
        with self.enters("synchronize"):
            self.host_waits.append(get_ident())
            if self.heeds_wait():
                self._run_until(after)
                self._host = joined(self._host, clock)

    def heeds_wait(self) -> bool:
        frames, frame = [], sys._getframe(1)
        while frame := frame.f_back:  # type: ignore[assignment]
            if "/runtime/cuda/" in frame.f_code.co_filename:
                frames.append(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}")
        self.waits.append(" < ".join(frames))
        return len(self.waits) != self.lost_wait

    def _queue(
        self, name: str, stream: FakeStream, reads: Iterable[Tensor], writes: Iterable[Tensor],
        run: Callable[[], object],
    ) -> None:  # fmt: skip
        tick = self._ticks[stream.number] = self._ticks.get(stream.number, 0) + 1
        stream.clock = {**joined(stream.clock, self._host), stream.number: tick}
        for tensors, writing in ((reads, False), (writes, True)):
            for tensor in tensors:
                self._note(tensor, writing, stream.number, stream.clock, f"{name} on stream {stream.number}")
        operation = Operation(f"{name} on stream {stream.number}", stream.frontier, run)
        stream.frontier = frozenset({operation})
        self._pending.append(operation)

    def _note(self, tensor: Tensor, writes: bool, who: int, clock: Clock, name: str) -> None:
        assert tensor.is_contiguous()
        start = tensor.data_ptr()
        new = Access(start, start + tensor.nbytes, writes, who, clock[who], name)
        # What the host knows to be over comes before everything from now on.
        self._accesses = [old for old in self._accesses if old.tick > self._host.get(old.who, 0)]
        for old in self._accesses:
            if new.conflicts(old) and old.tick > clock.get(old.who, 0):
                self.violations.append(f"{old.name} and {name} touch the same bytes, and nothing orders them")
        self._accesses.append(new)

    def _run_one(self, wanted: Iterable[Operation]) -> None:
        ready = [each for each in wanted if not each.done and all(before.done for before in each.after)]
        if ready:
            operation = self.draw.choice(ready)
            operation.run()
            operation.done, operation.after = True, frozenset()
            self._pending.remove(operation)
            self.trail.append(operation.name)

    def _run_until(self, after: frozenset[Operation]) -> None:
        needed, behind = set[Operation](), list(after)
        while behind:
            if (each := behind.pop()) not in needed and not each.done:
                needed.add(each)
                behind += each.after
        wanted = [each for each in self._pending if each in needed or self.draw.random() < 0.3]
        while any(not each.done for each in after):
            self._run_one(wanted)


_is_a_device: Callable[[FakeDevice], Device] = lambda device: device  # noqa: E731 - for the type checker
_is_a_stream: Callable[[FakeStream], Stream] = lambda stream: stream  # noqa: E731
