"""CARv1 files: blocks one after another, each under its CID, after a header that names the roots.

    varint(size) header                  dag-cbor {"roots": [&...], "version": 1}
    varint(36 + size) CID block          once per block, until the stream ends

Writer and reader go through the stream once; both hash every block, unless the caller does. The writer holds a gather
list of about a megabyte, the reader one block. A stream that stops inside a header or a block is `TruncatedCar`. One
that stops *between* two blocks looks whole from here, because the format has no end mark: only the graph can tell, so a
caller asks `chain.missing` what the roots still lack.

>>> import io
>>> block = b"hello"
>>> cid = Cid.of(block, codec="raw", hash_name="blake3")
>>> file = io.BytesIO()
>>> write_car(file, [cid], [(cid, block)])
101
>>> reader = read_car(io.BytesIO(file.getvalue()))
>>> reader.roots == (cid,), list(reader) == [(cid, block)]
(True, True)
>>> list(read_car(io.BytesIO(file.getvalue()[:-1])))
Traceback (most recent call last):
...
cyberkv.cybergraph.errors.TruncatedCar: CAR stream ends at byte 100, inside a block
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, Final, Protocol

from .checks import most_bytes
from .cid import CID_BYTES, Buffer, Cid
from .dagcbor import decode, encode
from .errors import Corrupt, LimitExceeded, MalformedCar, MalformedCid, TruncatedCar, UnsupportedFormat
from .foreign import MOST_CID_BYTES, read_cid
from .limits import MAX_CAR_HEADER_BYTES, MAX_CAR_SECTION_BYTES
from .staging import Room
from .varint import read_varint, write_varint

GATHER_BYTES: Final = 1 << 20
GATHER_BUFFERS: Final = 1024
"""Most that is handed on at once, so that small blocks do not pile up."""

_MOST_SIZE_BYTES: Final = 4
"""A size of more bytes is beyond every limit."""


def car_header(roots: Sequence[Cid]) -> bytes:
    """Give what stands before the blocks. Raises `LimitExceeded` for more roots than a reader accepts."""
    header = encode({"roots": list(roots), "version": 1})
    if len(header) > MAX_CAR_HEADER_BYTES:
        raise LimitExceeded(f"CAR header of {len(header)} bytes, limit {MAX_CAR_HEADER_BYTES}")
    return write_varint(len(header)) + header


def car_section(cid: Cid, data: Buffer) -> bytes:
    """Give one block as it stands in the stream, unchecked."""
    return b"".join((write_varint(CID_BYTES + len(data)), cid, data))


class Gather(Protocol):
    """Takes lists of buffers, all of each: an open buffered file, or something quicker."""

    def writelines(self, lines: list[Buffer], /) -> object:
        """Write buffers one after the other. They keep their bytes until the next call."""


def write_car(out: Gather, roots: Sequence[Cid], blocks: Iterable[tuple[Cid, Buffer]], *, hashed: bool = False) -> int:
    """Write a whole CAR and give its size in bytes.

    Blocks go out in gather lists of at most `GATHER_BYTES` and a block more. Each is checked against its CID, unless
    `hashed`. Raises `DigestMismatch` and `LimitExceeded` for a block that no reader would accept; what stood before it
    is written.
    """
    vectors: list[Buffer] = [car_header(roots)]
    size_bytes = waiting_bytes = len(vectors[0])
    try:
        for cid, data in blocks:
            if not hashed:
                cid.verify(data)
            head = car_head(cid, len(data), size_bytes)
            vectors += head, data
            size_bytes += len(head) + len(data)
            waiting_bytes += len(head) + len(data)
            if waiting_bytes >= GATHER_BYTES or len(vectors) > GATHER_BUFFERS - 2:
                out.writelines(vectors)
                vectors, waiting_bytes = [], 0
            del data
    finally:
        out.writelines(vectors)
    return size_bytes


def car_head(cid: Cid, size_bytes: int, offset: int = 0) -> bytes:
    """Give what stands before a block in the stream. Raises `LimitExceeded`, naming `offset`."""
    _check_size(cid, size_bytes, offset)
    return write_varint(CID_BYTES + size_bytes) + cid


def read_car(stream: BinaryIO, *, skip_foreign: bool = False) -> "CarReader":
    """Read the header; the blocks follow by iteration. Raises as `CarReader`."""
    return CarReader(stream, skip_foreign=skip_foreign)


class CarReader:
    """Blocks of a CAR stream.

    Raises `MalformedCar`, `TruncatedCar`, `LimitExceeded` and `UnsupportedFormat` (CARv2), all with `offset`. No bytes
    are read ahead of the block given out. Blocks under CIDs of other forms are refused, or passed over.
    """

    roots: tuple[Cid, ...]

    def __init__(self, stream: BinaryIO, *, skip_foreign: bool = False) -> None:
        self._stream = stream
        self._skip_foreign = skip_foreign
        self.offset = 0
        """Bytes read so far."""
        size_bytes = self._size(MAX_CAR_HEADER_BYTES)
        if size_bytes is None:
            raise self._truncated("before its header")
        self.roots = self._header(self._exactly(size_bytes, "inside its header"))

    def __iter__(self) -> Iterator[tuple[Cid, bytes]]:
        """Give each block, checked against its CID. Raises `DigestMismatch`."""
        for cid, size_bytes in self._sections():
            data = self._exactly(size_bytes, "inside a block")
            cid.verify(data)
            yield cid, data

    def unchecked(self, room: Room) -> Iterator[tuple[Cid, Buffer]]:
        """Give each block as it stands in the stream, leaves in memory from `room`: the caller hashes them."""
        for cid, size_bytes in self._sections():
            if cid.codec == "raw":
                data: Buffer = room(size_bytes)
                self._fill(memoryview(data))
            else:
                data = self._exactly(size_bytes, "inside a block")
            yield cid, data
            del data  # or the memory would stay in use while the next block is waited for

    def _sections(self) -> Iterator[tuple[Cid, int]]:
        """Give CID and size of each block; the caller reads its bytes."""
        start = self.offset
        while (size_bytes := self._size(MAX_CAR_SECTION_BYTES)) is not None:
            if size_bytes < CID_BYTES and not self._skip_foreign:
                raise _malformed(start, f"section of {size_bytes} bytes has no room for a CID")
            name = self._exactly(min(size_bytes, CID_BYTES), "inside a CID")
            try:
                cid = Cid(name)
            except MalformedCid as error:
                if not self._skip_foreign:
                    raise _malformed(start, str(error)) from error
                self._pass_over(name, size_bytes, start)
            else:
                _check_size(cid, size_bytes - CID_BYTES, start)
                yield cid, size_bytes - CID_BYTES
            start = self.offset

    def _pass_over(self, name: bytes, size_bytes: int, start: int) -> None:
        """Read the rest of a section that begins with a CID of another form."""
        section = name + self._exactly(size_bytes - len(name), "inside a block")
        try:
            read_cid(section[:MOST_CID_BYTES])
        except MalformedCid as error:
            raise _malformed(start, str(error)) from error

    def _fill(self, target: memoryview) -> None:
        while target.nbytes:
            count = self._stream.readinto(target)  # type: ignore[attr-defined]  # every buffered stream has it
            if not count:
                raise self._truncated("inside a block")
            self.offset += count
            target = target[count:]

    def _header(self, data: bytes) -> tuple[Cid, ...]:
        start = self.offset - len(data)
        try:
            header = decode(data)
        except Corrupt as error:
            raise _malformed(start, f"header: {error}") from error
        if not isinstance(header, dict):
            raise _malformed(start, "header is not a map")
        version, roots = header.get("version"), header.get("roots")
        if type(version) is int and version > 1:
            raise UnsupportedFormat(
                f"CAR version {version}, this program reads version 1",
                hint="unwrap it to CARv1",
                offset=start,
            )
        if header.keys() != {"roots", "version"} or type(version) is not int or version != 1:
            raise _malformed(start, "header is not {roots, version: 1}")
        if not isinstance(roots, list) or not all(isinstance(root, Cid) for root in roots):
            raise _malformed(start, "roots are not a list of links")
        return tuple(root for root in roots if isinstance(root, Cid))

    def _size(self, most_bytes: int) -> int | None:
        """Read a section's size; None where the stream ends before it."""
        start, head = self.offset, b""
        while byte := self._stream.read(1):
            self.offset += 1
            head += byte
            if byte[0] > 127 and len(head) < _MOST_SIZE_BYTES:
                continue
            try:
                size_bytes, _ = read_varint(head)
            except EOFError:  # longer than the size of anything that may stand here
                size_bytes = most_bytes + 1
            except ValueError as error:
                raise _malformed(start, f"size: {error}") from error
            if size_bytes > most_bytes:
                raise LimitExceeded(f"CAR at byte {start}: section over {most_bytes} bytes", offset=start)
            return size_bytes
        if head:
            raise self._truncated("inside a size")
        return None

    def _exactly(self, count: int, where: str) -> bytes:
        parts, left = [], count
        while left:
            part = self._stream.read(left)
            if not part:
                raise self._truncated(where)
            self.offset += len(part)
            left -= len(part)
            parts.append(part)
        return b"".join(parts)

    def _truncated(self, where: str) -> TruncatedCar:
        return TruncatedCar(
            f"CAR stream ends at byte {self.offset}, {where}",
            hint="blocks before it are sound; fetch again to get the rest",
            offset=self.offset,
        )


def _check_size(cid: Cid, size_bytes: int, offset: int) -> None:
    if size_bytes > most_bytes(cid):
        raise LimitExceeded(
            f"CAR at byte {offset}: {cid.codec} block of {size_bytes} bytes, limit {most_bytes(cid)}",
            offset=offset,
        )


def _malformed(offset: int, reason: str) -> MalformedCar:
    return MalformedCar(f"CAR at byte {offset}: {reason}", offset=offset, reason=reason)
