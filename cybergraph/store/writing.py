"""Bulk writes: leaves are checked and brought to page-aligned memory on two threads while others are written.

A leaf that fills its slot and lies on a page boundary, as the rows of the runtime's pool do, is written from where
it is. Any other is copied to a staging buffer, with the zeros that fill its slot. Slots that lie side by side are
written in one call.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from mmap import mmap
from typing import Final, NamedTuple

from ..cid import Buffer, Cid
from .catalog import Place
from .slab import SLOT_UNIT_BYTES, SlabFiles, SlabId, is_aligned

GROUP_BYTES: Final = 16 << 20
"""Slots that are prepared together. There are two staging buffers of this size: one is filled, one is written."""
CHUNK_BYTES: Final = 1 << 20
"""Least that a thread is given: smaller tasks cost more to hand over than they bring."""
THREADS: Final = 2

_ZEROS: Final = bytes(SLOT_UNIT_BYTES)


class Placed(NamedTuple):
    """A leaf and the slot it is to be written to."""

    cid: Cid
    data: Buffer
    place: Place


class _Job(NamedTuple):
    """What has to happen to a leaf before its slot can be written."""

    cid: Cid
    data: memoryview
    target: memoryview | None
    """Its slot in a staging buffer, if it cannot be written from where it is."""


class LeafWriter:
    """Writes leaves into slots of one store. For one thread at a time."""

    def __init__(self, slabs: SlabFiles, on_step: Callable[[str], None]) -> None:
        self._slabs = slabs
        self._on_step = on_step
        self._staging: list[memoryview] = []
        self._threads: ThreadPoolExecutor | None = None

    def write(self, leaves: Sequence[Placed], *, hashed: bool) -> None:
        """Write leaves, durably when it returns; check each against its CID before, unless `hashed`.

        Leaves for slots that lie side by side must follow each other. Raises `DigestMismatch`, `OSError`; the slots
        may then hold anything.
        """
        slots = {each.place.slab: each.place.slot + 1 for each in leaves}
        for slab, count in slots.items():
            self._slabs.reserve(slab, count)
            self._on_step("reserved")
        tasks: list[Future[None]] = []
        try:
            groups = list(_groups(leaves))
            vectors, tasks = self._prepare(groups[0], 0, hashed=hashed) if groups else ([], [])
            for number, group in enumerate(groups, 1):
                for task in tasks:
                    task.result()
                ready = vectors
                if number < len(groups):
                    vectors, tasks = self._prepare(groups[number], number % 2, hashed=hashed)
                self._on_step("staged")
                for slab, offset, run in _runs(group, ready):
                    self._slabs.write(slab, offset, run)
                    self._on_step("written")
        finally:
            wait(tasks)  # they read the caller's buffers
        for slab in slots:
            self._slabs.sync(slab)
            self._on_step("synced")

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def _prepare(
        self, group: Sequence[Placed], half: int, *, hashed: bool
    ) -> tuple[list[memoryview], list[Future[None]]]:
        """Give what to write into each leaf's slot, and what to wait for before."""
        vectors: list[memoryview] = []
        jobs: list[_Job] = []
        staged_bytes = 0
        for cid, data, place in group:
            view, slot_bytes = memoryview(data).cast("B"), place.slab.slot_bytes
            if view.nbytes == slot_bytes and is_aligned(view):
                vectors.append(view)
                if not hashed:
                    jobs.append(_Job(cid, view, None))
            else:
                target = self._buffer(half)[staged_bytes : staged_bytes + slot_bytes]
                staged_bytes += slot_bytes
                vectors.append(target)
                jobs.append(_Job(cid, view, target))
        chunks = list(_chunks(jobs))
        if len(chunks) > 1:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="store-write")
            return vectors, [self._threads.submit(_work, chunk, hashed=hashed) for chunk in chunks]
        for chunk in chunks:
            _work(chunk, hashed=hashed)
        return vectors, []

    def _buffer(self, half: int) -> memoryview:
        while len(self._staging) <= half:
            self._staging.append(memoryview(mmap(-1, GROUP_BYTES)))
        return self._staging[half]


def _work(chunk: Sequence[_Job], *, hashed: bool) -> None:
    for cid, data, target in chunk:
        if target is not None:
            target[: data.nbytes] = data
            target[data.nbytes :] = _ZEROS[: target.nbytes - data.nbytes]
            data = target[: data.nbytes]  # what is checked is what is written
        if not hashed:
            cid.verify(data)


def _groups(leaves: Sequence[Placed]) -> Iterator[Sequence[Placed]]:
    start = size_bytes = 0
    for end, each in enumerate(leaves):
        if size_bytes + each.place.slab.slot_bytes > GROUP_BYTES:
            yield leaves[start:end]
            start, size_bytes = end, 0
        size_bytes += each.place.slab.slot_bytes
    if leaves:
        yield leaves[start:]


def _chunks(jobs: Sequence[_Job]) -> Iterator[Sequence[_Job]]:
    start = size_bytes = 0
    for end, job in enumerate(jobs, 1):
        size_bytes += job.data.nbytes
        if size_bytes >= CHUNK_BYTES:
            yield jobs[start:end]
            start, size_bytes = end, 0
    if start < len(jobs):
        yield jobs[start:]


def _runs(group: Sequence[Placed], vectors: Sequence[memoryview]) -> Iterator[tuple[SlabId, int, list[memoryview]]]:
    """Give slab, offset and buffers of each run of slots that lie side by side."""
    start = 0
    for end in range(1, len(group) + 1):
        before = group[end - 1].place
        if end == len(group) or group[end].place[:2] != (before.slab, before.slot + 1):
            yield group[start].place.slab, group[start].place.offset, list(vectors[start:end])
            start = end
