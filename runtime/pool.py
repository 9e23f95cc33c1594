"""The paged pool: raw K and V of blocks, block-major, byte for byte what is stored and sent.

One row holds one block: `[num_layers, K|V, block_size, kv_heads, width]`, where `width` is `head_dim`, or more where a
scale stands beside it (`packing`). Its leaves are consecutive byte ranges of the row, so sealing hashes in place and a
load reads in place.

`Rows` counts, `BlockPool` adds what moves bytes in and out, and `Pool` does that in host memory. Whatever goes through
`BlockPool` alone works over a pool on a device, too (`runtime/cuda/devicepool.py`); what reads rows in place asks
`on_host` first.
"""

import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from ..cybergraph.cid import Buffer, Cid
from ..cybergraph.errors import TierFull, UnsupportedModel
from .geometry import Geometry
from .quant import Packing, packing_of
from .rows import Rows


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


class Filling(Protocol):
    """Blocks on their way into rows, the lowest layers of all of them first."""

    error: BaseException | None
    """Why fewer come than were asked for."""

    def take(self, layer: int) -> None:
        """Wait until a layer's rows of all blocks were verified; kernels launched from then on read them.

        Raises why a block does not come.
        """

    def finish(self) -> int:
        """Wait until no more comes, and count the leading blocks that came whole.

        Fewer than were asked for where `error` is about a leaf that is absent or damaged; any other is raised.
        """

    def close(self) -> None:
        """Stop. What has not come by now never does. Harmless twice."""


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
    def begin(self, source: LeafSource, leaves: Sequence[Sequence[Cid]], rows: Sequence[int]) -> Filling | None:
        """Begin to `fill` rows, to be waited for layer by layer; None where they can only be filled at once.

        The caller keeps the rows until it has closed what this gives.
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

    def begin(self, source: LeafSource, leaves: Sequence[Sequence[Cid]], rows: Sequence[int]) -> None:
        """See `BlockPool`: who computes here reads them at once."""

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
            hint="do it on the processor: with --device cpu, or by a command that has no such option",
            field="pool", got=type(pool).__name__,
        )  # fmt: skip
    return pool
