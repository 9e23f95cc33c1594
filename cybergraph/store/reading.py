"""Bulk reads: leaves that lie side by side come in one call, straight into the caller's buffers."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from ..cid import HASHES, Cid
from .catalog import Place
from .slab import SLOT_UNIT_BYTES, SlabFiles

RUN_BYTES: Final = 1 << 20
"""Size at which a run is long enough: longer ones read no faster."""
PARALLEL_BYTES: Final = 4 << 20
"""Reads from this size on are spread over threads: reading and hashing both leave the interpreter free."""
THREADS: Final = 2


class Wanted(NamedTuple):
    """A leaf, where it lies, and the buffer of its size that takes it."""

    cid: Cid
    place: Place
    target: memoryview


def read_leaves(slabs: SlabFiles, wanted: Sequence[Wanted]) -> list[Wanted]:
    """Read leaves into their buffers and give back those whose bytes do not hash to their CIDs."""
    read = partial(_read_run, slabs)
    if sum(each.place.size_bytes for each in wanted) < PARALLEL_BYTES:
        return [failed for run in _runs(wanted) for failed in read(run)]
    with ThreadPoolExecutor(THREADS) as pool:
        return [failed for each in pool.map(read, _runs(wanted)) for failed in each]


def _runs(wanted: Iterable[Wanted]) -> Iterator[list[Wanted]]:
    run: list[Wanted] = []
    for each in sorted(wanted, key=lambda each: each.place):
        if run and (
            each.place.slab != run[-1].place.slab
            or each.place.slot != run[-1].place.slot + 1
            or len(run) * each.place.slab.slot_bytes >= RUN_BYTES
        ):
            yield run
            run = []
        run.append(each)
    if run:
        yield run


def _read_run(slabs: SlabFiles, run: list[Wanted]) -> list[Wanted]:
    padding = memoryview(bytearray(SLOT_UNIT_BYTES))
    vectors: list[memoryview] = []
    for each in run:
        vectors += each.target, padding[: each.place.slab.slot_bytes - each.place.size_bytes]
    slabs.read_into(run[0].place.slab, run[0].place.offset, vectors[:-1])
    return [each for each in run if HASHES[each.cid.hash_name](each.target) != each.cid.digest]
