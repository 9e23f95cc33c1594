"""A device of which it is known what was ordered, and which does everything else in the worst order.

Each copy and kernel is an operation on a stream, and runs some time after what the order that was recorded puts before
it: which one is next, and how many run when, is drawn. So where an event is missing, bytes come out wrong. Besides,
each operation and each access of the host carries a vector clock: two that touch the same bytes, one of them writing,
and of which neither comes before the other, are a violation, in whatever order they ran.

The host counts as one thread.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from threading import RLock, get_ident
from typing import Any

import torch
from torch import Tensor

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import DigestMismatch
from cyberkv.cybergraph.nodes import Block
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.runtime.cuda.device import ENTRY_DTYPE, Device, Stream, out_of_memory
from cyberkv.runtime.cuda.devicepool import BlockTables, DevicePool
from cyberkv.runtime.cuda.moves import Moves
from cyberkv.runtime.cuda.staging import HostRow
from tests.contracts.synthetic import BLOCK_SIZE, make_blocks
from tests.laws.shelves import BLOCK_BYTES, GEOMETRY, MODEL

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
        self._paces = draw.choice(((0,), (0, 0, 1), (0, 1, 3)))
        """How many operations run during a call: none unless it is waited for, some, many."""
        self._lock = RLock()
        self._pending: list[Operation] = []
        self._accesses: list[Access] = []
        self._ticks: Clock = {}
        self._host: Clock = {}
        self._streams: list[FakeStream] = []
        self._compute = self.stream()

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
            return torch.full((size_bytes,), 0xEE, dtype=torch.uint8)

    def pinned(self, size_bytes: int) -> Tensor:
        with self.enters("pinned"):
            if size_bytes > self.left_pinned_bytes:
                raise out_of_memory("page-locked host memory", size_bytes)
            self.left_pinned_bytes -= size_bytes
            return torch.full((size_bytes,), 0xDD, dtype=torch.uint8)

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

    def free_bytes(self) -> int:
        return self.left_bytes

    def kernel(self, run: Callable[[], object], *, reads: Iterable[Tensor] = (), writes: Iterable[Tensor] = ()) -> None:
        """Launch something on the compute stream that touches these bytes."""
        with self.enters("kernel"):
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


class Inline(Executor):
    """Does what it is given before `submit` returns: one order of host code, for laws about the order on the device."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Later(Executor):
    """Does what it is given when it is told to."""

    def __init__(self) -> None:
        self.tasks: list[Callable[[], Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.tasks.append(lambda: fn(*args, **kwargs))
        return Future()

    def run(self) -> None:
        while self.tasks:
            self.tasks.pop(0)()


class WatchedStore(MemoryStore):
    """Says to a device when the host writes, and fails where it is told to."""

    def __init__(self, device: FakeDevice | None = None) -> None:
        super().__init__()
        self.device = device
        self.reads = self.fails_at = 0
        self.failure: BaseException = OSError("the disk is gone")
        self.before: Callable[[], None] = lambda: None
        """Called before each bulk read."""

    def get_into(self, cids: Sequence[Cid], out: Sequence[memoryview]) -> None:
        self.before()
        self.reads += 1
        for view in out:
            if self.device is not None:
                self.device.host(view, writes=True)
            view[:] = b"\xcc" * view.nbytes
        if self.reads == self.fails_at:
            raise self.failure
        for cid, view in zip(cids, out, strict=True):
            data = self._blocks.get(cid)
            if data is not None and len(data) == view.nbytes:
                view[:] = data  # what is damaged is in the buffer by the time it is seen
        super().get_into(cids, out)

    def damage(self, cid: Cid) -> None:
        """Change a byte of a block."""
        data = bytearray(self._blocks[cid])
        data[0] ^= 1
        self._blocks[cid] = bytes(data)
        try:
            self.get(cid)
        except DigestMismatch:
            return
        raise AssertionError("not damaged")


class Rig:
    """Blocks in a store, a pool and moves on a fake device, and what each block holds."""

    def __init__(
        self, *, seed: int | Random = 0, blocks: int = 6, rows: int = 4, host_blocks: int = 2, slots: int = 2,
        leaves_per_slot: int = 2, executor: Executor | None = None,
    ) -> None:  # fmt: skip
        self.device = FakeDevice(seed if isinstance(seed, Random) else Random(seed))
        self.store = WatchedStore(self.device)
        self.cids = make_blocks(self.store, MODEL, range(blocks * BLOCK_SIZE))
        self.leaves = [Block.decode(self.store.get(cid)).kv for cid in self.cids]
        self.bytes = [b"".join(self.store.get(leaf) for leaf in leaves) for leaves in self.leaves]
        self.pool = DevicePool(self.device, GEOMETRY, rows)
        self.moves = Moves(
            self.pool, executor or Inline(), host_bytes=host_blocks * BLOCK_BYTES,
            slot_bytes=leaves_per_slot * GEOMETRY.leaf_bytes(0), slots=slots,
        )  # fmt: skip
        self.tables = BlockTables(self.pool, 2, 2)

    def group(self, block: int, group: int) -> bytes:
        return self.store.get(self.leaves[block][group])

    def take(self, stack: ExitStack) -> int:
        """Take a row, which is given back with the stack unless it is before."""
        row = self.pool.allocate()
        stack.callback(lambda: self.pool.users(row) and self.pool.release(row))
        return row

    def again(self, row: int, stack: ExitStack) -> int:
        """Give a row back and take it again."""
        self.pool.release(row)
        taken = self.take(stack)
        assert taken == row
        return taken

    def look(self, row: int) -> list[bytes]:
        """Have a kernel read a row."""
        return self.device.read(self.pool.bytes[row])

    def fill(self, row: int, value: int) -> bytes:
        """Have a kernel write a row of a sequence."""
        self.tables.set(0, [row])
        self.device.kernel(lambda: self.pool.bytes[row].fill_(value), writes=[self.pool.bytes[row]])
        return bytes([value]) * BLOCK_BYTES

    def host_bytes(self, host: HostRow) -> bytes:
        leaves = host.leaves()
        for leaf in leaves:
            self.device.host(leaf, writes=False)
        return b"".join(leaves)

    def is_clean(self) -> bool:
        """Nothing is held by anybody, and all that there is can be used."""
        assert self.moves.check_integrity() == []
        assert self.device.violations == []
        return self.pool.used_blocks == self.moves.ring.used == self.moves.host.used == 0
