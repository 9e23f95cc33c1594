"""Where each block of a CAR file lies: gone through once, in 16 bytes of memory a block.

A file may be CARv1 or CARv2, in any order, with blocks under CIDs of any kind. One that was cut short, or goes bad at
some place, still has what stands before it.

Blocks are found by their multihash, so the same bytes are found under CIDs of version 0 and 1. What stands before a
block is read again at each look-up: a file that was changed meanwhile gives an error and never another block.
"""

import hashlib
import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from .carsection import Section, cut, read_roots, read_section, read_size
from .errors import Corrupt, CyberKVError, LimitExceeded, MalformedBytes, MalformedCar, NotFound
from .foreign import MOST_CID_BYTES, AnyCid, multihash_of
from .limits import MAX_CAR_HEADER_BYTES, MAX_CAR_SECTIONS, MAX_LEAF_BYTES
from .private import open_regular
from .varint import MOST_BYTES

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""

_V2_PRAGMA: Final = bytes.fromhex("0aa16776657273696f6e02")
_V2_HEADER_BYTES: Final = 40
_HEAD_BYTES: Final = MOST_BYTES + MOST_CID_BYTES
_WINDOW_BYTES: Final = 4096
"""What is read at once where blocks are small."""
_TELL_EVERY: Final = 1 << 12
_OFFSET_BITS: Final = 64
_OFFSET_MASK: Final = (1 << _OFFSET_BITS) - 1
_HASH_MASK: Final = (1 << 64) - 1

AnyKind = TypeVar("AnyKind", bound=AnyCid)
"""The kind of CID that was asked for."""


class _Window:
    """A part of the file in memory: a large one where small blocks follow one another, else what stands before one."""

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = read
        self._at = -_WINDOW_BYTES
        self.data = b""

    def at(self, at: int) -> int:
        """Have what stands before the block whose section begins at `at`; give where in the data it begins."""
        begin = at - self._at
        if 0 <= begin <= len(self.data) - _HEAD_BYTES:
            return begin
        self.data = self._read(_WINDOW_BYTES if 0 <= begin < _WINDOW_BYTES else _HEAD_BYTES, at)
        self._at = at
        return 0


class CarIndex:
    """The sections of one CARv1 file, or of the CARv1 inside a CARv2. Look-ups may come from any thread.

    >>> CarIndex(Path("/nowhere.car"))
    Traceback (most recent call last):
    ...
    cyberkv.cybergraph.errors.NotFound: cannot read /nowhere.car: No such file or directory
    """

    def __init__(self, path: Path, progress: Progress = lambda done, total: None) -> None:  # noqa: ARG005
        """Open a file and go through it.

        Raises `NotFound` for what cannot be read, `MalformedCar`, `TruncatedCar` for a bad header, `LimitExceeded` for
        more than `MAX_CAR_SECTIONS` blocks. A file that goes bad later on has what stands before; see `bad_end`.
        """
        self.path = path
        self.bad_end: CyberKVError | None = None
        """What is wrong with the file, from where on nothing of it is used."""
        self.left_out = 0
        """Blocks that are too large, or named by a hash function that is not known here."""
        with _reading(path, NotFound):
            self._file = open_regular(path)
        try:
            with _reading(path, NotFound):
                self._end = self._file.seek(0, os.SEEK_END)
                self.edition = _edition(os.fstat(self._file.fileno()))
                """What tells the file from what it was before, or will be once it is changed."""
                at, self.named = self._header()
                """Roots that the header names, in their order."""
                self._hashes, self._offsets = self._scan(at, progress)
            self.roots = [root for root in dict.fromkeys(self.named) if self.find(root) is not None]
            """Roots that the header names and the file holds, in their order."""
        except BaseException:
            self._file.close()
            raise

    def __len__(self) -> int:
        """Count the blocks that can be found, repetitions among them."""
        return len(self._hashes)

    def find(self, cid: AnyCid) -> Section | None:
        """Find the first block with the multihash of `cid`. Raises `Corrupt` where the file was changed meanwhile."""
        return next((section for _, section in self.find_all([cid])), None)

    def find_all(self, cids: Iterable[AnyKind]) -> Iterator[tuple[AnyKind, Section]]:
        """Find those of `cids` that the file holds, in the order of the file. Raises as `find`."""
        places: list[tuple[int, int, AnyKind]] = []
        for cid in cids:
            key = hash(multihash_of(cid)) & _HASH_MASK
            place = bisect_left(self._hashes, key)
            if place < len(self._hashes) and self._hashes[place] == key:
                places.append((self._offsets[place], place, cid))
        places.sort()
        window = _Window(self._pread)
        with _reading(self.path, Corrupt):
            for at, place, cid in places:
                yield cid, self._first(cid, at, window) or self._further(cid, place)

    def _first(self, cid: AnyCid, at: int, window: "_Window") -> Section | None:
        """Give the section at `at` if it has the multihash of `cid`, and the size of a block."""
        begin = window.at(at)
        section = read_section(window.data, begin, at)
        return section if section.multihash == multihash_of(cid) and section.size_bytes <= MAX_LEAF_BYTES else None

    def _further(self, cid: AnyCid, place: int) -> Section:
        """Find the section among those whose multihashes have the same hash as the one at `place`."""
        window = _Window(self._pread)
        for further in range(place + 1, bisect_right(self._hashes, self._hashes[place], place)):
            if section := self._first(cid, self._offsets[further], window):
                return section
        raise Corrupt(
            f"{self.path} was changed since it was opened", hint="start again to read it anew",
            path=str(self.path), cid=str(cid),
        )  # fmt: skip

    def read_into(self, vectors: Sequence[memoryview], start: int) -> None:
        """Fill memory from `start` on with blocks, unchecked. Raises `Corrupt`, also as `TruncatedCar`."""
        size_bytes = sum(each.nbytes for each in vectors)
        with _reading(self.path, Corrupt):
            filled = os.preadv(self._file.fileno(), vectors, start) if size_bytes else 0
        if filled != size_bytes:
            raise cut(start)

    def close(self) -> None:
        """Close the file. Blocks asked for afterwards are `Corrupt`."""
        self._file.close()

    def _scan(self, at: int, progress: Progress) -> tuple["array[int]", "array[int]"]:
        """Go through all sections: give hashes of their multihashes, sorted, and where each section begins."""
        places: list[int] = []
        window, count = _Window(self._pread), 0
        while at < self._end:
            begin = window.at(at)
            try:
                multihash, start, size_bytes = read_section(window.data, begin, at)
                if start + size_bytes > self._end:
                    raise cut(at)
            except MalformedBytes as error:
                self.bad_end = error
                break
            if multihash and size_bytes <= MAX_LEAF_BYTES:
                places.append((hash(multihash) & _HASH_MASK) << _OFFSET_BITS | at)
            else:
                self.left_out += 1
            count += 1
            if count > MAX_CAR_SECTIONS:
                raise LimitExceeded(f"{self.path} has over {MAX_CAR_SECTIONS} blocks", path=str(self.path))
            at = start + size_bytes
            if count % _TELL_EVERY == 0:
                progress(at, self._end)
        places.sort()
        hashes = array("Q", (place >> _OFFSET_BITS for place in places))
        return hashes, array("Q", (place & _OFFSET_MASK for place in places))

    def _header(self) -> tuple[int, list[AnyCid]]:
        """Read the header: give where the sections begin, and the roots. Sets where they end."""
        at = 0
        if self._pread(len(_V2_PRAGMA), 0) == _V2_PRAGMA:
            header = self._pread(_V2_HEADER_BYTES, len(_V2_PRAGMA))
            at, size_bytes = (int.from_bytes(header[place : place + 8], "little") for place in (16, 24))
            if len(header) < _V2_HEADER_BYTES or not len(_V2_PRAGMA) + len(header) <= at <= self._end:
                raise MalformedCar(f"{self.path}: its CARv2 header points outside of the file", offset=len(_V2_PRAGMA))
            if at + size_bytes > self._end:
                self.bad_end = cut(at)
            self._end = min(self._end, at + size_bytes)
        size_bytes, width = read_size(self._pread(MOST_BYTES, at), 0, at)
        if size_bytes > MAX_CAR_HEADER_BYTES:
            raise LimitExceeded(f"{self.path}: CAR header of {size_bytes} bytes, limit {MAX_CAR_HEADER_BYTES}")
        data = self._pread(size_bytes, at + width)
        if len(data) < size_bytes:
            raise cut(at)
        return at + width + size_bytes, read_roots(data, at)

    def _pread(self, count: int, at: int) -> bytes:
        return os.pread(self._file.fileno(), min(count, self._end - at), at)


def _edition(file: os.stat_result) -> str:
    """Tell a file from what it was or will be, in letters that show neither its time nor its place on the disk."""
    facts = f"{file.st_dev} {file.st_ino} {file.st_size} {file.st_mtime_ns}"
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


@contextmanager
def _reading(path: Path, kind: type[CyberKVError]) -> Iterator[None]:
    try:
        yield
    except CyberKVError:
        raise  # some are an `OSError` as well
    except (OSError, ValueError) as error:  # a file that was closed is a `ValueError`
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise kind(f"cannot read {path}: {reason}", hint="check the path", path=str(path)) from error
