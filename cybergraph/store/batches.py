"""Cutting what is to be stored into transactions."""

from collections.abc import Iterable, Iterator
from typing import Final

from ..cid import CID_BYTES, Buffer, Cid
from .base import limit_size
from .slab import KIB, SLOT_UNIT_BYTES, slot_kib

BATCH_BYTES: Final = 64 << 20
BATCH_BLOCKS: Final = 16_384
"""Most that one transaction writes: bounds the memory of a generator and the time the writer lock is held."""


def batches(blocks: Iterable[tuple[Cid, Buffer]]) -> Iterator[dict[Cid, Buffer]]:
    """Cut into batches; of two blocks with one CID in a batch the first counts. Raises `LimitExceeded`."""
    batch: dict[Cid, Buffer] = {}
    size_bytes = 0
    for cid, data in blocks:
        block_bytes = limit_size(cid, data)
        if batch and (size_bytes + block_bytes > BATCH_BYTES or len(batch) >= BATCH_BLOCKS):
            yield batch
            batch, size_bytes = {}, 0
        if batch.setdefault(cid, data) is data:
            size_bytes += block_bytes
    if batch:
        yield batch


def most_bytes(batch: dict[Cid, Buffer]) -> int:
    """Give the most room that a batch takes: slots of leaves, and pages of nodes.

    A page of nodes may be half empty, and those on the way to it may split once more.
    """
    sizes = {cid: memoryview(data).nbytes for cid, data in batch.items()}
    leaf_bytes = sum(slot_kib(size_bytes) * KIB for cid, size_bytes in sizes.items() if cid.codec == "raw")
    nodes = [CID_BYTES + size_bytes for cid, size_bytes in sizes.items() if cid.codec != "raw"]
    return leaf_bytes + (2 * sum(nodes) + 3 * SLOT_UNIT_BYTES if nodes else 0)
