"""One layer's rows in a ring: rotated K, and V, of the positions that its window still sees.

Two layouts. Token-major keeps the heads of one token together, head-major the history of one head:

>>> token_major(slot=2, head=1, dim=0, capacity=8, kv_heads=2, head_dim=4)
20
>>> head_major(slot=2, head=1, dim=0, capacity=8, kv_heads=2, head_dim=4)
40
>>> places = range(8), range(2), range(4)
>>> from itertools import product
>>> all(sorted(f(s, h, d, 8, 2, 4) for s, h, d in product(*places)) == [*range(64)] for f in (token_major, head_major))
True
"""

import mmap
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import torch
from torch import Tensor

from .ring import Batch, Position, Ring, Slot


class Layout(StrEnum):
    """Order of a plane's axes."""

    TOKEN_MAJOR = "token-major"  # noqa: S105 - no password
    """`[capacity, kv_heads, head_dim]`"""
    HEAD_MAJOR = "head-major"
    """`[kv_heads, capacity, head_dim]`: what attention reads without a copy."""


def token_major(slot: int, head: int, dim: int, capacity: int, kv_heads: int, head_dim: int) -> int:  # noqa: ARG001
    """Index of an element in a token-major plane."""
    return (slot * kv_heads + head) * head_dim + dim


def head_major(slot: int, head: int, dim: int, capacity: int, kv_heads: int, head_dim: int) -> int:  # noqa: ARG001
    """Index of an element in a head-major plane."""
    return (head * capacity + slot) * head_dim + dim


@dataclass(frozen=True, slots=True)
class Plane:
    """A ring with its memory. The description is immutable; the memory is shared by its successors.

    An append writes over rows that the plane before it still describes. Whoever could be stopped in between takes the
    steps of `append_batch` apart and keeps `upto` in between (`ringcopy.RingCopy`).
    """

    key: Tensor
    value: Tensor
    layout: Layout
    ring: Ring

    @classmethod
    def zeroed(
        cls, capacity: int, kv_heads: int, head_dim: int, dtype: torch.dtype, layout: Layout = Layout.HEAD_MAJOR
    ) -> Self:
        """Make an empty plane. The kernel clears its pages, each when it is first touched."""
        rows, heads = (capacity, kv_heads) if layout is Layout.TOKEN_MAJOR else (kv_heads, capacity)
        memory = mmap.mmap(-1, 2 * rows * heads * head_dim * dtype.itemsize, flags=mmap.MAP_PRIVATE)
        key, value = torch.frombuffer(memory, dtype=dtype).view(2, rows, heads, head_dim)
        return cls(key, value, layout, Ring(capacity))

    @property
    def capacity(self) -> int:
        """Rows that fit."""
        return self.ring.capacity

    @property
    def len(self) -> int:
        """Rows that are live."""
        return self.ring.len

    @property
    def origin_logical(self) -> Position:
        """Position of the oldest row."""
        return self.ring.origin_logical

    @property
    def origin_physical(self) -> Slot:
        """Slot of the oldest row."""
        return self.ring.origin_physical

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""
        return self.key.dtype

    @property
    def bytes(self) -> int:
        """Memory of K and V."""
        return self.key.nbytes + self.value.nbytes

    @property
    def by_head(self) -> tuple[Tensor, Tensor]:
        """K and V as views `[kv_heads, capacity, head_dim]`, by slot."""
        if self.layout is Layout.HEAD_MAJOR:
            return self.key, self.value
        return self.key.transpose(0, 1), self.value.transpose(0, 1)

    def on(self, ring: Ring) -> Self:
        """Describe the same memory by another ring."""
        return type(self)(self.key, self.value, self.layout, ring)

    def append(self, position: Position, k: Tensor, v: Tensor, *, layer: int) -> Self:
        """Take one row. Shapes: k and v [kv_heads, head_dim]. Raises `CacheDiscontinuity`."""
        ring, slot = self.ring.append(position, layer=layer)
        self.put(slot, k, v)
        return self.on(ring)

    def append_batch(self, position: Position, k: Tensor, v: Tensor, *, layer: int) -> Self:
        """Take rows from `position` on. Shapes: k and v [kv_heads, rows, head_dim]. Raises `CacheDiscontinuity`."""
        batch = self.ring.append_batch(position, k.shape[1], layer=layer)
        self.put_batch(batch, k, v)
        return self.on(batch.ring)

    def put(self, slot: Slot, k: Tensor, v: Tensor) -> None:
        """Write one row where `Ring.append` says."""
        keys, values = self.by_head
        keys[:, slot] = k
        values[:, slot] = v

    def put_batch(self, batch: Batch, k: Tensor, v: Tensor) -> None:
        """Write rows where `Ring.append_batch` says. Shapes: k and v [kv_heads, rows, head_dim]."""
        source = batch.source_first
        keys, values = self.by_head
        for slot, rows in batch.runs:
            keys[:, slot : slot + rows] = k[:, source : source + rows]
            values[:, slot : slot + rows] = v[:, source : source + rows]
            source += rows

    def gather_into(self, first: Position, last: Position, keys: Tensor, values: Tensor) -> None:
        """Copy held positions in logical order. Shapes: keys and values [kv_heads, last - first, head_dim]."""
        own_keys, own_values = self.by_head
        at = 0
        for slot, rows in self.ring.runs(first, last):
            keys[:, at : at + rows] = own_keys[:, slot : slot + rows]
            values[:, at : at + rows] = own_values[:, slot : slot + rows]
            at += rows

    def gather(self, first: Position, last: Position) -> tuple[Tensor, Tensor]:
        """Give K and V of held positions in logical order, as a copy that no later append can reach.

        Shapes: [kv_heads, last - first, head_dim]. The bytes do not depend on the rotation.
        """
        kv_heads, _, head_dim = self.by_head[0].shape
        keys, values = torch.empty(2, kv_heads, last - first, head_dim, dtype=self.dtype)
        self.gather_into(first, last, keys, values)
        return keys, values
