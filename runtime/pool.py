"""The paged pool: raw K and V of blocks, block-major, byte for byte what is stored and sent.

One row holds one block: `[num_layers, K|V, block_size, kv_heads, width]`, where `width` is `head_dim`, or more where a
scale stands beside it (`packing`). Its leaves are consecutive byte ranges of the row, so sealing hashes in place and a
load reads in place.

A row is free, in use, or kept: without a user, and with content that its keeper (`tiers`) can still name. Kept rows
make way when there is no free one.
"""

import mmap
from threading import RLock
from typing import Final, Protocol

import torch
from torch import Tensor

from ..cybergraph.errors import TierFull
from .geometry import Geometry
from .quant import packing_of

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


class Pool(Rows):
    """Fixed number of rows in page-aligned memory that is only touched when used."""

    def __init__(self, geometry: Geometry, capacity_blocks: int) -> None:
        g = geometry
        self.geometry = geometry
        self.packing = packing_of(geometry)
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
        view, start = memoryview(self._memory), row * self.geometry.block_bytes
        leaves = []
        for group in range(self.geometry.leaves_per_block):
            size = self.geometry.leaf_bytes(group)
            leaves.append(view[start : start + size])
            start += size
        return leaves

    def copy_out(self, row: int) -> bytearray:
        """Copy a row's bytes to host memory."""
        start = row * self.geometry.block_bytes
        return bytearray(memoryview(self._memory)[start : start + self.geometry.block_bytes])

    def copy_in(self, row: int, data: bytearray) -> None:
        """Put back what `copy_out` gave."""
        start = row * self.geometry.block_bytes
        memoryview(self._memory)[start : start + self.geometry.block_bytes] = data

    def tail_leaves(self, row: int, tokens: int) -> list[bytes]:
        """Copy the first `tokens` rows of every layer, as one leaf per layer group."""
        block = self.rows[row]
        return [
            block[first : first + count, :, :tokens].contiguous().view(torch.uint8).numpy().tobytes()
            for first, count in self.geometry.leaf_layers
        ]

    def fill_tail(self, row: int, tokens: int, leaves: list[bytearray]) -> None:
        """Put back what `tail_leaves` gave."""
        block = self.rows[row]
        for (first, count), leaf in zip(self.geometry.leaf_layers, leaves, strict=True):
            part = block[first : first + count, :, :tokens]
            part.copy_(torch.frombuffer(leaf, dtype=block.dtype).view(part.shape))
