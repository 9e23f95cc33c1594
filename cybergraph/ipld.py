"""Other people's blocks by their codec: the value that one holds, and what it links to.

dag-cbor here is all of it: floats, links to CIDs of any kind, integers of 64 bits without sign. It is as strict as
`dagcbor`, which reads what CyberKV itself writes, and slower.

>>> from .foreign import parse_cid
>>> cid = parse_cid("bafyreigaknpexyvxt76zgkitavbwx6ejgfheup5oybpm77f3pxzrvwpfdi")
>>> read_value(cid, bytes.fromhex("a16568656c6c6f65776f726c64"))
{'hello': 'world'}
>>> write_value("dag-json", {"half": 0.5})
b'{"half":0.5}'
"""

import math
import struct
from collections.abc import Iterator
from typing import Any, Final, Literal

from . import dagjson
from .cid import Buffer, Cid
from .dagcbor import encode_bytes, encode_list, encode_map, encode_text, head
from .errors import LimitExceeded, MalformedBytes, MalformedCbor, MalformedCid, UnsupportedFormat
from .foreign import AnyCid, AnyValue, ForeignCid, any_cid
from .limits import MAX_FOREIGN_DEPTH, MAX_FOREIGN_NODE_BYTES, MAX_NODE_ITEMS
from .varint import read_varint

ValueCodec = Literal["dag-cbor", "dag-json"]
VALUE_CODECS: Final[tuple[ValueCodec, ...]] = "dag-cbor", "dag-json"
"""Codecs whose blocks are values: lists, maps, links."""

_LINK_TAG: Final = b"\xd8\x2a"
_MOST_PROTOBUF_BYTES: Final = 10
_FLOAT: Final = struct.Struct(">d")
_WIDTHS: Final = {24: 1, 25: 2, 26: 4, 27: 8}
_SIMPLE: Final[dict[int, bool | None]] = {0xF4: False, 0xF5: True, 0xF6: None}


def read_value(cid: AnyCid, data: Buffer) -> AnyValue:
    """Read a dag-cbor or dag-json block, links as CIDs. `data` must have been checked against `cid`.

    Raises `MalformedBytes`, `LimitExceeded`, and `UnsupportedFormat` for another codec.
    """
    if cid.codec == "dag-cbor":
        return read_dag_cbor(data)
    if cid.codec == "dag-json":
        return dagjson.decode(data)
    raise UnsupportedFormat(f"{cid} is {cid.codec}, which is not read as a value", cid=str(cid), codec=cid.codec)


def read_dag_cbor(data: Buffer) -> AnyValue:
    """Read dag-cbor of any shape. Raises `MalformedCbor`, `LimitExceeded`."""
    return _Reader(bytes(data)).whole()


def write_value(codec: ValueCodec, value: AnyValue) -> bytes:
    """Encode any value canonically. Raises `MalformedBytes` for what the codec lacks, `LimitExceeded`."""
    return dagjson.encode(value) if codec == "dag-json" else _encode(value, MAX_FOREIGN_DEPTH)


def links_of(cid: AnyCid, data: Buffer) -> list[AnyCid]:
    """List what a block links to, in its order, repeated where repeated; other codecs than three have no links here.

    `data` must have been checked against `cid`. Raises as `read_value`.
    """
    if cid.codec == "dag-pb":
        return _dag_pb_links(bytes(data))
    return list(_links(read_value(cid, data))) if cid.codec in VALUE_CODECS else []


def _links(value: AnyValue) -> Iterator[AnyCid]:
    if isinstance(value, (Cid, ForeignCid)):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value if isinstance(value, list) else value.values():
            yield from _links(item)


def _encode(value: Any, depth: int) -> bytes:
    kind = type(value)  # exact types only: True is an int to isinstance, and a Cid is bytes
    if kind is str:
        return encode_text(value)
    if kind is bytes:
        return encode_bytes(value)
    if kind is bool or value is None:
        return b"\xf6" if value is None else b"\xf5" if value else b"\xf4"
    if kind in (Cid, ForeignCid):
        return _LINK_TAG + encode_bytes(b"\0" + value)
    if kind is int:
        if not -(1 << 64) <= value < 1 << 64:
            raise LimitExceeded(f"integer of {value.bit_length()} bits, which dag-cbor has no form for")
        return head(0, value) if value >= 0 else head(1, -1 - value)
    if kind is float:
        if not math.isfinite(value):
            raise MalformedCbor("dag-cbor has no infinity and nothing that is no number")
        return b"\xfb" + _FLOAT.pack(value)
    if depth == 0:
        raise _too_deep()
    if kind is list:
        return encode_list([_encode(item, depth - 1) for item in value], len(value))
    if kind is dict:
        return encode_map([(key, _encode(item, depth - 1)) for key, item in value.items()])
    raise MalformedCbor(f"dag-cbor has no {kind.__name__}")


class _Reader:
    """Reads one strict dag-cbor value."""

    def __init__(self, data: bytes) -> None:
        if len(data) > MAX_FOREIGN_NODE_BYTES:
            raise LimitExceeded(f"node of {len(data)} bytes, limit {MAX_FOREIGN_NODE_BYTES}", size_bytes=len(data))
        self._data = data
        self._at = 0
        self._items = 0

    def whole(self) -> AnyValue:
        """Read the value that is all of the data."""
        value = self._item(MAX_FOREIGN_DEPTH)
        if self._at != len(self._data):
            raise self._fail("bytes after the value")
        return value

    def _item(self, depth: int) -> AnyValue:
        self._items += 1
        if self._items > MAX_NODE_ITEMS:
            raise LimitExceeded(f"node of more than {MAX_NODE_ITEMS} values")
        first = self._take(1)[0]
        if first in _SIMPLE:
            return _SIMPLE[first]
        if first == 0xFB:
            return self._float()
        major, argument = first >> 5, self._argument(first)
        if major == 0:
            return argument
        if major == 1:
            return -1 - argument
        if major == 2:
            return self._take(argument)
        if major == 3:
            return self._text(argument)
        if major == 6:
            return self._link(argument)
        if depth == 0:
            raise _too_deep()
        if major == 4:
            return [self._item(depth - 1) for _ in range(argument)]
        return self._map(argument, depth - 1)

    def _argument(self, first: int) -> int:
        info = first & 31
        if info < 24 and first < 0xE0:
            return info
        if first >= 0xE0 or info not in _WIDTHS:
            raise self._fail("a form that dag-cbor lacks")
        width = _WIDTHS[info]
        argument = int.from_bytes(self._take(width), "big")
        if argument < 24 or (width > 1 and argument >> 4 * width == 0):
            raise self._fail("not in its shortest form")
        return argument

    def _take(self, count: int) -> bytes:
        at, self._at = self._at, self._at + count
        if self._at > len(self._data):
            raise self._fail("ends early")
        return self._data[at : self._at]

    def _float(self) -> float:
        value: float = _FLOAT.unpack(self._take(8))[0]
        if not math.isfinite(value):
            raise self._fail("infinity or not a number")
        return value

    def _text(self, size_bytes: int) -> str:
        try:
            return self._take(size_bytes).decode()
        except UnicodeDecodeError as error:
            raise self._fail("text that is not UTF-8") from error

    def _link(self, tag: int) -> AnyCid:
        head_ = self._take(1)[0]
        data = self._take(self._argument(head_)) if head_ >> 5 == 2 else b""
        if tag != 42 or data[:1] != b"\0":
            raise self._fail("a tag that is not a link")
        try:
            return any_cid(data[1:])
        except MalformedCid as error:
            raise self._fail(f"link: {error}") from error

    def _map(self, count: int, depth: int) -> dict[str, AnyValue]:
        value: dict[str, AnyValue] = {}
        before = (-1, b"")
        for _ in range(count):
            first = self._take(1)[0]
            if first >> 5 != 3:
                raise self._fail("map key that is not text")
            key = self._text(self._argument(first))
            order = len(key.encode()), key.encode()
            if order <= before:
                raise self._fail("map keys out of order or repeated")
            before = order
            value[key] = self._item(depth)
        return value

    def _fail(self, reason: str) -> MalformedCbor:
        return MalformedCbor(f"dag-cbor at byte {self._at}: {reason}", offset=self._at, reason=reason)


def _too_deep() -> LimitExceeded:
    return LimitExceeded(f"more than {MAX_FOREIGN_DEPTH} containers inside one another")


def _dag_pb_links(data: bytes) -> list[AnyCid]:
    """List the links of a dag-pb node: the hash (field 1) of each link (field 2)."""
    found: list[AnyCid] = []
    for field, value in _fields(data):
        if field != 2:
            continue
        hashes = [inner for number, inner in _fields(value) if number == 1]
        if len(hashes) != 1:
            raise MalformedBytes("dag-pb: a link without one CID", reason="link without a CID")
        try:
            found.append(any_cid(hashes[0]))
        except MalformedCid as error:
            raise MalformedBytes(f"dag-pb: {error}", reason=str(error)) from error
    return found


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """List the fields of a protobuf message that are bytes, and step over numbers. Raises `MalformedBytes`."""
    at = 0
    while at < len(data):
        try:
            key, at = read_varint(data, at, _MOST_PROTOBUF_BYTES, shortest=False)
            value, at = read_varint(data, at, _MOST_PROTOBUF_BYTES, shortest=False)
        except (EOFError, ValueError) as error:
            raise MalformedBytes(f"dag-pb at byte {at}: {error}", offset=at) from error
        if key & 7 == 2:
            if value > len(data) - at:
                raise MalformedBytes(f"dag-pb at byte {at}: ends inside a field", offset=at)
            yield key >> 3, data[at : at + value]
            at += value
        elif key & 7:
            raise MalformedBytes(f"dag-pb at byte {at}: a field of another type", offset=at)
