"""The paged pool in device memory, byte for byte the rows of the host's `Pool`, and the block tables over its rows.

One object has all of it: rows and their order (`DeviceRows`), and what moves their bytes (`Moves`). Kernels reach rows
through block tables only, and `BlockTables.set` has their stream wait. The pool sees row numbers, never hashes.
"""

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Final, Self, cast

import torch
from torch import Tensor

from ...cybergraph.cid import Buffer, Cid
from ...cybergraph.errors import TierFull
from ..geometry import Geometry
from ..pool import BlockPool, HostBlock, LeafSource, cut_leaves, put_leaves
from ..rows import ARCHIVED
from .device import ENTRY_DTYPE, Device
from .devicerows import DeviceRows
from .loading import Loading
from .moves import SLOT_BYTES, SLOTS, Moves
from .staging import HostRow

FREE_PERCENT: Final = 80
"""Of the device memory that is free, where no size is given. The rest is for what kernels work in."""

PADDING: Final = 0
"""Stands in a block table where there is no block: a row that exists, so that what reads too far reads something."""


class DevicePool(DeviceRows, BlockPool):
    """Fixed number of rows in device memory. Copies are queued, and happen later."""

    def __init__(
        self,
        device: Device,
        geometry: Geometry,
        capacity_blocks: int,
        *,
        host_bytes: int = 0,
        may_be_less: bool = False,
        executor: Executor | None = None,
        slot_bytes: int = SLOT_BYTES,
        slots: int = SLOTS,
    ) -> None:
        """Set the memory aside, as `Moves` says too. `executor` reads leaves, by default a thread of the pool's own.

        Raises `TierFull`.
        """
        super().__init__(device, geometry, capacity_blocks)
        self._own = None if executor else ThreadPoolExecutor(1, thread_name_prefix="load")
        self.moves = Moves(
            self, executor or cast("Executor", self._own), host_bytes=host_bytes, may_be_less=may_be_less,
            slot_bytes=slot_bytes, slots=slots,
        )  # fmt: skip

    @classmethod
    def sized(
        cls,
        device: Device,
        geometry: Geometry,
        device_memory_bytes: int | None = None,
        *,
        host_bytes: int = 0,
        may_be_less: bool = False,
        executor: Executor | None = None,
    ) -> Self:
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
        return cls(
            device, geometry, budget_bytes // geometry.block_bytes, host_bytes=host_bytes, may_be_less=may_be_less,
            executor=executor,
        )  # fmt: skip

    @property
    def host_bytes(self) -> int:
        """Page-locked host memory for rows that leave it."""
        return self.moves.host.count * self.geometry.block_bytes

    def begin(self, source: LeafSource, leaves: Sequence[Sequence[Cid]], rows: Sequence[int]) -> Loading:
        """See `BlockPool`: `Moves.load`."""
        return self.moves.load(source, leaves, rows)

    def fill(self, source: LeafSource, leaves: Sequence[Sequence[Cid]], rows: Sequence[int]) -> None:
        """See `BlockPool`: the copies are queued by then, and those before them went on while others were verified."""
        with self.begin(source, leaves, rows) as loading:
            if loading.finish() < len(rows) and loading.error is not None:
                raise loading.error

    def read(self, rows: Sequence[int]) -> list[list[memoryview]]:
        """See `BlockPool`: copies in page-locked memory, which the host waits for."""
        spans = self.geometry.leaf_spans
        return [[block[start:end] for start, end in spans] for block in self.moves.read(rows)]

    def host_block(self) -> HostRow:
        """See `BlockPool`: page-locked, as far as `host_bytes` go."""
        return self.moves.host_row()

    def copy_out(self, row: int) -> HostRow:
        """See `BlockPool`: `Moves.save`."""
        return self.moves.save(row)

    def copy_in(self, row: int, block: HostBlock) -> None:
        """See `BlockPool`: `Moves.restore`."""
        self.moves.restore([(cast("HostRow", block), row)])

    def tail_leaves(self, row: int, tokens: int) -> list[bytes]:
        """See `BlockPool`: the whole row comes down, in one copy."""
        [block] = self.moves.read([row])
        raw = torch.frombuffer(block, dtype=self.rows.dtype).view(self.rows.shape[1:])
        return cut_leaves(self.geometry, raw, tokens)

    def fill_tail(self, row: int, tokens: int, leaves: Sequence[Buffer]) -> None:
        """See `BlockPool`: the whole row is written, in one copy, with zeros behind."""
        block = self.device.pinned(self.geometry.block_bytes).zero_()
        put_leaves(self.geometry, block.view(self.rows.dtype).view(self.rows.shape[1:]), tokens, leaves)
        self.moves.write(row, block)

    def copy_cut(self, source: int, target: int, tokens: int) -> None:  # noqa: ARG002 - see below
        """See `BlockPool`: the whole row, in one copy, on the stream of the kernels."""
        self.settle([source, target])
        self.device.copy([(self.bytes[target], self.bytes[source])], self.device.compute)

    def drain(self) -> None:
        """See `BlockPool`."""
        self.moves.drain()

    def close(self) -> None:
        """Have the host wait for the copies that are queued: after that, the memory may go. Close loadings first."""
        self.drain()
        if self._own is not None:
            self._own.shutdown()

    def check_integrity(self) -> list[str]:
        """List what does not add up in rows and slots; empty where all is well."""
        return [*super().check_integrity(), *self.moves.check_integrity()]


class BlockTables:
    """Which rows hold the blocks of each sequence, on the device, for kernels: int32 [sequences, width].

    What changes is written on the compute stream, so kernels launched before see the table as it was. For one thread.
    """

    def __init__(self, pool: DeviceRows, sequences: int, width: int) -> None:
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
