"""Blocks in a store, and a pool over a fake device that they come to and go from."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from random import Random
from typing import Any

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import DigestMismatch
from cyberkv.cybergraph.nodes import Block
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.runtime.cuda.devicepool import BlockTables, DevicePool
from cyberkv.runtime.cuda.staging import HostRow
from tests.contracts.synthetic import BLOCK_SIZE, make_blocks
from tests.gpu.fakes import FakeDevice
from tests.laws.shelves import BLOCK_BYTES, GEOMETRY, MODEL


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
        self.pool = DevicePool(
            self.device, GEOMETRY, rows, host_bytes=host_blocks * BLOCK_BYTES, executor=executor or Inline(),
            slot_bytes=leaves_per_slot * GEOMETRY.leaf_bytes(0), slots=slots,
        )  # fmt: skip
        self.moves = self.pool.moves
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

    def read(self, row: int) -> bytes:
        """Have the host read a row."""
        [leaves] = self.pool.read([row])
        for leaf in leaves:
            self.device.host(leaf, writes=False)
        return b"".join(leaves)

    def is_clean(self) -> bool:
        """Nothing is held by anybody, and all that there is can be used."""
        assert self.pool.check_integrity() == []
        assert self.device.violations == []
        return self.pool.used_blocks == self.moves.ring.used == self.moves.host.used == 0
