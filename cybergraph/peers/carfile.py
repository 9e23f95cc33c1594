"""A CAR file as a peer: gone through once for where each block lies, then read in any order.

A file that was cut short, or goes bad at some place, still gives what stands before it. Blocks under CIDs of other
forms are passed over.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final, TypeAlias

from ..carindex import CarIndex
from ..carsection import Section
from ..checks import most_bytes
from ..cid import Buffer, Cid
from ..errors import CyberKVError, TruncatedCar
from ..staging import Room, heap_room
from .base import Peer, not_held

_RUN_BYTES: Final = 1 << 20
_RUN_BLOCKS: Final = 256
_GAP_BYTES: Final = 4096
"""Reading past a node is cheaper than a second call."""

_Held: TypeAlias = tuple[Cid, Section]


class CarFilePeer(Peer):
    """Blocks of one CAR file, of version 1 or 2. Memory: 16 bytes a block."""

    whole_dags: ClassVar = True

    def __init__(self, path: Path) -> None:
        """Open and go through the file.

        Raises `NotFound`, also for what is no file, such as a pipe; `MalformedCar`, `TruncatedCar` for a bad header.
        """
        self.name = str(path)
        self._index = CarIndex(path)
        self.roots = tuple(root for root in self._index.named if isinstance(root, Cid))
        """Roots that the header names, held or not, as far as they have CIDs of our forms."""
        self._bad_end: CyberKVError | None = self._index.bad_end
        if self._bad_end is None and not {*self.roots} <= {*self._index.roots}:
            self._bad_end = TruncatedCar(f"{path} ends before the roots it names", path=self.name)

    @property
    def is_whole(self) -> bool:
        """Whether the file ends where a block ends, and holds the roots that it names."""
        return self._bad_end is None

    def read_many(self, cids: Sequence[Cid], room: Room) -> Iterator[tuple[Cid, Buffer]]:
        """See `Peer`. Reads in the order of the file, neighbours in one call. Raises `Corrupt` if it was changed."""
        absent = dict.fromkeys(cids)
        for run in _runs(self._index.find_all(absent)):
            for cid, _ in run:
                del absent[cid]
            yield from self._read(run, room)
        if absent:
            raise self._bad_end or not_held(self.name, [*absent])

    def _read(self, run: list[_Held], room: Room) -> list[tuple[Cid, Buffer]]:
        at = first = run[0][1].start
        gap = heap_room(_GAP_BYTES)
        blocks: list[tuple[Cid, memoryview, bool]] = []
        vectors: list[memoryview] = []
        for cid, section in run:
            is_leaf = cid.codec == "raw"
            data = room(section.size_bytes) if is_leaf else heap_room(section.size_bytes)
            vectors += gap[: section.start - at], data  # what stands between two blocks is read past
            blocks.append((cid, data, is_leaf))
            at = section.start + section.size_bytes
        self._index.read_into(vectors, first)
        return [(cid, data if is_leaf else bytes(data)) for cid, data, is_leaf in blocks]

    def close(self) -> None:
        """See `Peer`."""
        self._index.close()


def _runs(held: Iterable[_Held]) -> Iterator[list[_Held]]:
    """Cut what is wanted, and no larger than it may be, into reads of about a megabyte."""
    run: list[_Held] = []
    first = end = 0
    for cid, section in held:
        if section.size_bytes > most_bytes(cid):
            continue
        start = section.start
        is_near = 0 <= start - end <= _GAP_BYTES  # one block may be wanted under two codecs
        if run and (not is_near or start - first >= _RUN_BYTES or len(run) == _RUN_BLOCKS):
            yield run
            run = []
        first = first if run else start
        end = start + section.size_bytes
        run.append((cid, section))
    if run:
        yield run
