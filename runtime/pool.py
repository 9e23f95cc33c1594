"""The paged pool: raw K and V of blocks, block-major, byte for byte what is stored and sent.

One row holds one block: `[num_layers, K|V, block_size, kv_heads, head_dim]`. Its leaves are consecutive byte ranges of
the row, so sealing hashes in place and a load reads in place.
"""

import mmap

import torch
from torch import Tensor

from ..cybergraph.errors import TierFull
from .geometry import Geometry

DTYPES: dict[str, torch.dtype] = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class Pool:
    """Fixed number of rows in page-aligned memory that is only touched when used. Rows are counted by reference."""

    def __init__(self, geometry: Geometry, capacity_blocks: int) -> None:
        g = geometry
        self.geometry = geometry
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
        self.rows: Tensor = torch.frombuffer(self._memory, dtype=DTYPES[g.dtype]).view(
            capacity_blocks, g.num_layers, 2, g.block_size, g.num_kv_heads, g.head_dim
        )
        self._references = [0] * capacity_blocks
        self._free = list(range(capacity_blocks - 1, -1, -1))

    def allocate(self) -> int:
        """Take a free row, counted once. Raises `TierFull`."""
        if not self._free:
            raise TierFull(
                f"all {len(self._references)} pool rows are in use",
                hint="close a conversation or give the pool more blocks",
                capacity_blocks=len(self._references),
            )
        row = self._free.pop()
        self._references[row] = 1
        return row

    def retain(self, row: int) -> int:
        """Count one more user of a row."""
        self._references[row] += 1
        return row

    def release(self, row: int) -> None:
        """Count one user less; the last one frees the row."""
        self._references[row] -= 1
        if not self._references[row]:
            self._free.append(row)

    @property
    def used_blocks(self) -> int:
        """Rows with at least one user."""
        return len(self._references) - len(self._free)

    def leaves(self, row: int) -> list[memoryview]:
        """Writable views of a row's leaves, lowest layers first."""
        view, start = memoryview(self._memory), row * self.geometry.block_bytes
        leaves = []
        for group in range(self.geometry.leaves_per_block):
            size = self.geometry.leaf_bytes(group)
            leaves.append(view[start : start + size])
            start += size
        return leaves

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
