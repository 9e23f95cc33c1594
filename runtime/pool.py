"""The paged pool: raw K and V of blocks, block-major, byte for byte what is stored and sent.

One row holds one block: `[num_layers, K|V, block_size, kv_heads, width]`, where `width` is `head_dim`, or more where a
scale stands beside it (`packing`). Its leaves are consecutive byte ranges of the row, so sealing hashes in place and a
load reads in place.

A row is free, in use, or kept: without a user, and with content that its keeper (`tiers`) can still name. Kept rows
make way when there is no free one.

`Rows` counts, `BlockPool` adds what moves bytes in and out, and `Pool` does that in host memory. Whatever goes through
`BlockPool` alone works over a pool on a device, too (`runtime/cuda/devicepool.py`); what reads rows in place asks
`on_host` first.
"""

import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from threading import RLock
from typing import Final, Protocol

import torch
from torch import Tensor

from ..cybergraph.cid import Buffer, Cid
from ..cybergraph.errors import TierFull, UnsupportedModel
from .geometry import Geometry
from .quant import Packing, packing_of

ARCHIVED: Final = 1 << 62
"""Stands in a page table for a block whose row was given back: no row has this number, so nothing reads it."""


class Keeper(Protocol):
    """Whoever knows what rows hold. Called with the pool's lock held."""

    def unused(self, row: int) -> bool:
        """Say whether a row that has just lost its last user is kept."""

    def evict(self) -> bool:
        """Drop one kept row (`Pool.drop`), and say whether there was one that may go."""


class Rows:
    """A fixed number of rows, counted by reference: what a pool keeps of them, wherever their bytes are.

    `lock` guards the counts; every method takes it, and a keeper may hold it over several calls.
    """

    def __init__(self, capacity_blocks: int) -> None:
        self.lock = RLock()
        self._references = [0] * capacity_blocks
        self._free = list(range(capacity_blocks - 1, -1, -1))
        self._kept: set[int] = set()
        self._keeper: Keeper | None = None

    def attach(self, keeper: Keeper) -> None:
        """Have a keeper decide about rows that nobody uses; what another one kept is dropped."""
        with self.lock:
            for row in sorted(self._kept, reverse=True):  # taken again in order: neighbours are read without a copy
                self.drop(row)
            self._keeper = keeper

    def allocate(self) -> int:
        """Take a free row, counted once. Raises `TierFull`."""
        with self.lock:
            if not self._free and not (self._keeper and self._keeper.evict()):
                raise TierFull(
                    f"all {len(self._references)} pool rows are in use",
                    hint="close a conversation or give the pool more blocks",
                    capacity_blocks=len(self._references),
                )
            row = self._free.pop()
            self._references[row] = 1
            return row

    def retain(self, row: int) -> int:
        """Count one more user of a row that is in use or kept."""
        if row == ARCHIVED:
            return row
        with self.lock:
            self._kept.discard(row)
            self._references[row] += 1
            return row

    def release(self, row: int) -> None:
        """Count one user less; the last one leaves the row to the keeper, or frees it."""
        if row == ARCHIVED:
            return
        with self.lock:
            if not self._references[row]:
                raise RuntimeError(f"row {row} has no user")
            self._references[row] -= 1
            if not self._references[row]:
                self._kept.add(row)
                if self._keeper is None or not self._keeper.unused(row):
                    self.drop(row)

    def drop(self, row: int) -> None:
        """Free a kept row."""
        with self.lock:
            if row in self._kept:
                self._kept.remove(row)
                self._free.append(row)

    def users(self, row: int) -> int:
        """Count the users of a row."""
        return self._references[row]

    @property
    def capacity_blocks(self) -> int:
        """All rows."""
        return len(self._references)

    @property
    def used_blocks(self) -> int:
        """Rows with at least one user."""
        return len(self._references) - len(self._free) - len(self._kept)

    @property
    def kept_blocks(self) -> int:
        """Rows without a user whose content is kept."""
        return len(self._kept)

    def check_integrity(self) -> list[str]:
        """List what is wrong with the counts: each row is free, kept or in use, and exactly one of these."""
        with self.lock:
            free, used = set(self._free), {row for row, count in enumerate(self._references) if count > 0}
            findings = [f"row {row} has {count} users" for row, count in enumerate(self._references) if count < 0]
            if len(free) != len(self._free):
                findings.append("a row is free twice")
            total = len(self._free) + len(self._kept) + len(used)
            if total != len(self._references) or free | self._kept | used != set(range(len(self._references))):
                findings.append(f"{len(free)} free, {len(self._kept)} kept and {len(used)} used rows are not all once")
            return findings


class LeafSource(Protocol):
    """Gives leaves: a `Store` is one."""

    def get_into(self, cids: Sequence[Cid], out: Sequence[memoryview]) -> None:
        """Read leaves, verified, as `Store.get_into`."""


class HostBlock(Protocol):
    """The bytes of one block in host memory, outside of the pool."""

    def leaves(self) -> list[memoryview]:
        """Give the leaves, lowest layers first, good until `close`. To be read, and written by whoever took it new."""

    def close(self) -> None:
        """Give the memory back. Harmless twice."""


class BlockPool(Rows, ABC):
    """Rows, and every way of their bytes in and out, wherever they lie.

    On a device, bytes come and go later than the call: who launches something over rows calls `settle` for them first.
    """

    geometry: Geometry
    packing: Packing

    @abstractmethod
    def fill(self, source: LeafSource, leaves: Sequence[Sequence[Cid]], rows: Sequence[int]) -> None:
        """Read verified leaves into rows that the caller has just taken, and return once all were verified.

        Shape: `leaves[i]` are the leaves of the block that goes to `rows[i]`, lowest layers first. Raises what `source`
        raises; then no row holds anything to be relied on, and all may be given back.
        """

    @abstractmethod
    def read(self, rows: Sequence[int]) -> list[list[memoryview]]:
        """Give the leaves of rows, lowest layers first, to be hashed and stored; not to be written.

        Good for as long as the rows hold what they hold. Raises `TierFull` where there is no room to copy them to.
        """

    @abstractmethod
    def host_block(self) -> HostBlock:
        """Give host memory for one block, of any content. Raises `TierFull`."""

    @abstractmethod
    def copy_out(self, row: int) -> HostBlock:
        """Copy a row, which is kept or in use, to host memory; it may be dropped right after. Raises `TierFull`."""

    @abstractmethod
    def copy_in(self, row: int, block: HostBlock) -> None:
        """Copy a block to a row that was just taken; it may be closed right after."""

    @abstractmethod
    def tail_leaves(self, row: int, tokens: int) -> list[bytes]:
        """Copy the first `tokens` rows of every layer, as one leaf per layer group. Raises `TierFull`."""

    @abstractmethod
    def fill_tail(self, row: int, tokens: int, leaves: Sequence[Buffer]) -> None:
        """Put back what `tail_leaves` gave, to a row with one user; behind it stands anything. Raises `TierFull`."""

    @abstractmethod
    def copy_cut(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` rows of every layer to a row that was just taken; what is behind is anything."""

    @abstractmethod
    def settle(self, rows: Iterable[int]) -> None:
        """Have what is launched from now on come after the copies that touch some rows, which have users."""

    @abstractmethod
    def drain(self) -> None:
        """Have the host wait until nothing is copied any more."""


class HeapBlock:
    """The bytes of a block in ordinary memory."""

    __slots__ = ("_geometry", "data")

    def __init__(self, geometry: Geometry, data: bytearray) -> None:
        """Take `data` over."""
        self._geometry, self.data = geometry, data

    def leaves(self) -> list[memoryview]:
        """See `HostBlock`."""
        view = memoryview(self.data)
        return [view[start:end] for start, end in self._geometry.leaf_spans]

    def close(self) -> None:
        """See `HostBlock`."""
        self.data = bytearray()


class Pool(BlockPool):
    """Rows in host memory, page-aligned, that is only touched when used. Leaves are read and written in place."""

    def __init__(self, geometry: Geometry, capacity_blocks: int) -> None:
        g = geometry
        self.geometry, self.packing = geometry, packing_of(geometry)
        try:
            # Private and in huge pages: a load into fresh memory spends more on first touches than on reading.
            self._memory = mmap.mmap(-1, max(1, capacity_blocks) * g.block_bytes, flags=mmap.MAP_PRIVATE)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                self._memory.madvise(mmap.MADV_HUGEPAGE)
        except (OSError, OverflowError) as error:
            raise TierFull(
                f"no room for a pool of {capacity_blocks} blocks of {g.block_bytes} bytes: {error}",
                hint="give the pool fewer blocks, or the process more address space",
                capacity_blocks=capacity_blocks,
            ) from error
        self.rows: Tensor = torch.frombuffer(self._memory, dtype=self.packing.stored_dtype).view(
            capacity_blocks, g.num_layers, 2, g.block_size, g.num_kv_heads, self.packing.width
        )
        super().__init__(capacity_blocks)

    def leaves(self, row: int) -> list[memoryview]:
        """Writable views of a row's leaves, lowest layers first."""
        view, at = memoryview(self._memory), row * self.geometry.block_bytes
        return [view[at + start : at + end] for start, end in self.geometry.leaf_spans]

    def fill(self, source: LeafSource, leaves: Sequence[Sequence[Cid]], rows: Sequence[int]) -> None:
        """See `BlockPool`: in place, as one batch."""
        views = [view for row in rows for view in self.leaves(row)]
        source.get_into([leaf for each in leaves for leaf in each], views)

    def read(self, rows: Sequence[int]) -> list[list[memoryview]]:
        """See `BlockPool`: no copies."""
        return [self.leaves(row) for row in rows]

    def host_block(self) -> HeapBlock:
        """See `BlockPool`."""
        return self._heap(lambda: bytearray(self.geometry.block_bytes))

    def copy_out(self, row: int) -> HeapBlock:
        """See `BlockPool`."""
        start = row * self.geometry.block_bytes
        return self._heap(lambda: bytearray(memoryview(self._memory)[start : start + self.geometry.block_bytes]))

    def _heap(self, make: Callable[[], bytearray]) -> HeapBlock:
        try:
            return HeapBlock(self.geometry, make())
        except MemoryError as error:
            size_bytes = self.geometry.block_bytes
            raise TierFull(f"no room for {size_bytes} bytes in host memory", size_bytes=size_bytes) from error

    def copy_in(self, row: int, block: HostBlock) -> None:
        """See `BlockPool`."""
        for view, leaf in zip(self.leaves(row), block.leaves(), strict=True):
            view[:] = leaf

    def tail_leaves(self, row: int, tokens: int) -> list[bytes]:
        """See `BlockPool`."""
        return cut_leaves(self.geometry, self.rows[row], tokens)

    def fill_tail(self, row: int, tokens: int, leaves: Sequence[Buffer]) -> None:
        """See `BlockPool`."""
        put_leaves(self.geometry, self.rows[row], tokens, leaves)

    def copy_cut(self, source: int, target: int, tokens: int) -> None:
        """See `BlockPool`."""
        self.rows[target, :, :, :tokens] = self.rows[source, :, :, :tokens]

    def settle(self, rows: Iterable[int]) -> None:
        """See `BlockPool`: nothing is on its way."""

    def drain(self) -> None:
        """See `BlockPool`: nothing is on its way."""


def cut_leaves(geometry: Geometry, block: Tensor, tokens: int) -> list[bytes]:
    """Copy the first `tokens` rows of every layer of a block in host memory, as one leaf per layer group.

    Shape: block [num_layers, K|V, block_size, kv_heads, width].
    """
    return [
        block[first : first + count, :, :tokens].contiguous().view(torch.uint8).numpy().tobytes()
        for first, count in geometry.leaf_layers
    ]


def put_leaves(geometry: Geometry, block: Tensor, tokens: int, leaves: Sequence[Buffer]) -> None:
    """Put back what `cut_leaves` gave."""
    for (first, count), leaf in zip(geometry.leaf_layers, leaves, strict=True):
        part = block[first : first + count, :, :tokens]
        part.copy_(torch.frombuffer(bytearray(leaf), dtype=block.dtype).view(part.shape))


def on_host(pool: BlockPool, what: str) -> Pool:
    """Give a pool whose rows lie in host memory, for what reads them in place. `what` says who does.

    Raises `UnsupportedModel` for a pool on a device: call it before anything is changed.
    """
    if not isinstance(pool, Pool):
        raise UnsupportedModel(
            f"{what} reads rows in host memory, and this pool is on a device",
            hint="do it with an engine on the CPU",
            field="pool", got=type(pool).__name__,
        )  # fmt: skip
    return pool
