"""Bulk reads: leaves that lie side by side come in one call, straight into the caller's buffers."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Final, NamedTuple

from ..cid import HASHES, Cid
from .catalog import Place
from .slab import SlabFiles, SlabId, is_aligned

RUN_BYTES: Final = 1 << 20
"""Size at which a run is long enough: longer ones read no faster."""
PARALLEL_BYTES: Final = 4 << 20
"""Reads from this size on are spread over threads: reading and hashing both leave the interpreter free."""
DIRECT_BYTES: Final = 256 << 20
"""Reads from this size on go around the page cache where it holds less than half of a run: faster by a fifth to a
half, at half the processor time, and what else is in memory stays there. Smaller ones gain nothing by it; they go
through the page cache, so that the same again comes from memory."""
THREADS: Final = 4


class Wanted(NamedTuple):
    """A leaf, where it lies, and the buffer of its size that takes it."""

    cid: Cid
    place: Place
    target: memoryview


class LeafReader:
    """Reads leaves of one store, from any thread."""

    def __init__(self, slabs: SlabFiles) -> None:
        self._slabs = slabs
        self._threads: ThreadPoolExecutor | None = None
        self._lock = Lock()

    def read(self, wanted: Sequence[Wanted]) -> list[Wanted]:
        """Read leaves, sorted by place, into their buffers; give back those that do not hash to their CIDs."""
        size_bytes = sum(each.place.size_bytes for each in wanted)
        direct = size_bytes >= DIRECT_BYTES
        runs = _Shared(_runs(wanted))
        if size_bytes < PARALLEL_BYTES:
            return self._work(runs, direct=direct)
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="store-read")
            tasks = [self._threads.submit(self._work, runs, direct=direct) for _ in range(THREADS)]
        return [failed for task in tasks for failed in task.result()]

    def close(self) -> None:
        """End the threads."""
        with self._lock:
            if self._threads is not None:
                self._threads.shutdown()
                self._threads = None

    def _work(self, runs: "_Shared", *, direct: bool) -> list[Wanted]:
        failed: list[Wanted] = []
        while (run := runs.next()) is not None:
            self._read_run(run, direct=direct)
            failed += [each for each in run if HASHES[each.cid.hash_name](each.target) != each.cid.digest]
        return failed

    def _read_run(self, run: list[Wanted], *, direct: bool) -> None:
        slab, slot, _ = run[0].place
        vectors: list[memoryview] = []
        for _, place, target in run:
            vectors.append(target)
            if padding_bytes := slab.slot_bytes - place.size_bytes:
                vectors.append(memoryview(bytearray(padding_bytes)))
        offset, run_bytes = slot * slab.slot_bytes, len(run) * slab.slot_bytes
        if direct:
            cached = self._slabs.cached_bytes(slab, offset, run_bytes)
            direct = cached is not None and 2 * cached < run_bytes and all(map(is_aligned, vectors))
        self._slabs.read_into(slab, offset, vectors, direct=direct)


class _Shared:
    """Runs for several threads to take from."""

    def __init__(self, runs: Iterator[list[Wanted]]) -> None:
        self._runs = runs
        self._lock = Lock()

    def next(self) -> list[Wanted] | None:
        """Take a run; None when there are no more."""
        with self._lock:
            return next(self._runs, None)


def _runs(wanted: Iterable[Wanted]) -> Iterator[list[Wanted]]:
    run: list[Wanted] = []
    follows: tuple[SlabId, int] | None = None
    most = 0
    for each in wanted:
        slab, slot, _ = each.place
        if (slab, slot) != follows or len(run) == most:
            if run:
                yield run
            run, most = [], max(1, RUN_BYTES // slab.slot_bytes)
        run.append(each)
        follows = slab, slot + 1
    if run:
        yield run
