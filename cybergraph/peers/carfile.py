"""A CAR file as a peer: gone through once for where each block lies, then read in any order.

A file that was cut short, or goes bad at some place, still gives what stands before it.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final, TypeAlias

from ..car import read_car
from ..cid import CID_BYTES, Buffer, Cid
from ..errors import CyberKVError, LimitExceeded, MalformedCar, MalformedCid, NotFound, TruncatedCar
from ..limits import MAX_CAR_SECTIONS
from ..private import open_regular
from ..staging import Room, heap_room
from .base import Peer, most_bytes, not_held

_SIZE_BYTES: Final = 4
"""Longest varint before a section: 2^28 is far above any block."""
_RUN_BYTES: Final = 1 << 20
_RUN_BLOCKS: Final = 256
_GAP_BYTES: Final = 4096
"""Reading past a node is cheaper than a second call."""

_Held: TypeAlias = tuple[tuple[int, int], Cid]
"""Where a block starts, its size, and its CID."""


class CarFilePeer(Peer):
    """Blocks of one CARv1 file. Memory: some two hundred bytes a block."""

    whole_dags: ClassVar = True

    def __init__(self, path: Path) -> None:
        """Open and go through the file.

        Raises `NotFound`, also for what is no file, such as a pipe; `MalformedCar`, `TruncatedCar` for a bad header.
        """
        self.name = str(path)
        self._places: dict[Cid, tuple[int, int]] = {}
        self._bad_end: MalformedCar | TruncatedCar | None = None
        with _reading(self.name):
            self._file = open_regular(path)
        try:
            with _reading(self.name):
                self.roots = read_car(self._file).roots
                self._scan(self._file.tell())
            if self._bad_end is None and not all(root in self._places for root in self.roots):
                self._bad_end = TruncatedCar(f"{path} ends before the roots it names", path=str(path))
        except BaseException:
            self._file.close()
            raise

    @property
    def is_whole(self) -> bool:
        """Whether the file ends where a block ends, and holds the roots that it names."""
        return self._bad_end is None

    def _scan(self, at: int) -> None:
        end = self._file.seek(0, os.SEEK_END)
        handle = self._file.fileno()
        while at < end:
            head = os.pread(handle, _SIZE_BYTES + CID_BYTES, at)
            try:
                cid, start, size_bytes = _section(head, at)
            except (MalformedCar, TruncatedCar) as error:
                self._bad_end = error
                return
            if start + size_bytes > end:
                self._bad_end = _cut(at)
                return
            self._places.setdefault(cid, (start, size_bytes))
            if len(self._places) > MAX_CAR_SECTIONS:
                raise LimitExceeded(f"{self.name} has over {MAX_CAR_SECTIONS} blocks", path=self.name)
            at = start + size_bytes

    def read_many(self, cids: Sequence[Cid], room: Room) -> Iterator[tuple[Cid, Buffer]]:
        """See `Peer`. Reads in the order of the file, neighbours in one call."""
        held = sorted((self._places[cid], cid) for cid in dict.fromkeys(cids) if cid in self._places)
        for run in _runs(held):
            yield from self._read(run, room)
        if absent := [cid for cid in cids if cid not in self._places]:
            raise self._bad_end or not_held(self.name, absent)

    def _read(self, run: list[_Held], room: Room) -> list[tuple[Cid, Buffer]]:
        at = first = run[0][0][0]
        blocks: list[tuple[Cid, memoryview]] = []
        vectors: list[memoryview] = []
        for (start, size_bytes), cid in run:
            data = room(size_bytes) if cid.codec == "raw" else heap_room(size_bytes)
            vectors += heap_room(start - at), data  # what stands between two blocks is read past
            blocks.append((cid, data))
            at = start + size_bytes
        with _reading(self.name):
            if os.preadv(self._file.fileno(), vectors, first) < at - first:
                raise _cut(first)
        return [(cid, data if cid.codec == "raw" else bytes(data)) for cid, data in blocks]

    def close(self) -> None:
        """See `Peer`."""
        self._file.close()


@contextmanager
def _reading(name: str) -> Iterator[None]:
    try:
        yield
    except CyberKVError:
        raise  # some are an `OSError` as well
    except OSError as error:
        raise NotFound(f"cannot read {name}: {error.strerror}", hint="check the path", path=name) from error


def _runs(held: Iterable[_Held]) -> Iterator[list[_Held]]:
    """Cut what is wanted into reads of about a megabyte."""
    run: list[_Held] = []
    for each in held:
        if run:
            start, size_bytes = run[-1][0]
            gap_bytes = each[0][0] - start - size_bytes
            if gap_bytes > _GAP_BYTES or each[0][0] - run[0][0][0] >= _RUN_BYTES or len(run) == _RUN_BLOCKS:
                yield run
                run = []
        run.append(each)
    if run:
        yield run


def _section(head: bytes, at: int) -> tuple[Cid, int, int]:
    """Read a section's size and CID: (CID, where its block starts, size of the block)."""
    size_bytes = 0
    for width, byte in enumerate(head[:_SIZE_BYTES], 1):
        size_bytes |= (byte & 127) << 7 * (width - 1)
        if byte < 128:
            break
    else:
        raise (_cut(at) if len(head) < _SIZE_BYTES else MalformedCar(f"CAR at byte {at}: endless size", offset=at))
    if size_bytes < CID_BYTES:
        raise MalformedCar(f"CAR at byte {at}: section of {size_bytes} bytes has no room for a CID", offset=at)
    if len(head) < width + CID_BYTES:
        raise _cut(at)
    try:
        cid = Cid(head[width : width + CID_BYTES])
    except MalformedCid as error:
        raise MalformedCar(f"CAR at byte {at}: {error}", offset=at) from error
    if size_bytes - CID_BYTES > most_bytes(cid):
        raise MalformedCar(f"CAR at byte {at}: block of {size_bytes - CID_BYTES} bytes", offset=at)
    return cid, at + width + CID_BYTES, size_bytes - CID_BYTES


def _cut(at: int) -> TruncatedCar:
    return TruncatedCar(
        f"CAR file ends inside the block at byte {at}", hint="what stands before it is usable", offset=at
    )
