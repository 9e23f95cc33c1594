"""Strict dag-cbor, both ways: one value has one encoding, and nothing else is accepted.

Strictness is what makes a CID a name: if two byte strings could mean one node, two CIDs would name it.
Decoding runs in three steps, cheapest first: `scan` walks the item heads without building anything and
refuses every form that dag-cbor lacks; cbor2 builds the value under a depth bound; the value is encoded again
and must give the same bytes, which catches what a single head cannot show (key order, repeated keys, missing
or trailing bytes).

>>> encode({"b": 1, "a": [True, None]}).hex()
'a2616182f5f6616201'
>>> decode(bytes.fromhex("a2616182f5f6616201"))
{'a': [True, None], 'b': 1}
>>> decode(bytes.fromhex("1817"))
Traceback (most recent call last):
...
cyberkv.cybergraph.errors.MalformedCbor: dag-cbor at byte 0: not in its shortest form
"""

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias, Union

import cbor2

from .cid import Buffer, Cid
from .errors import LimitExceeded, MalformedCbor
from .limits import MAX_NODE_BYTES, MAX_NODE_DEPTH, MAX_NODE_ITEMS, MAX_TEXT_BYTES

Value: TypeAlias = Union[bool, int, str, bytes, Cid, list["Value"], dict[str, "Value"], None]  # noqa: UP007

MAX_INT: Final = (1 << 63) - 1
"""Integers outside 64 signed bits do not survive other languages' decoders."""

MAX_TOKEN: Final = (1 << 32) - 1

LINK_HEAD: Final = bytes.fromhex("d82a582500")
"""Tag 42, a byte string of 37, and the identity multibase prefix: what stands before every CID."""

NULL: Final = b"\xf6"
TRUE: Final = b"\xf5"
FALSE: Final = b"\xf4"

_WIDTHS: Final = {24: 1, 25: 2, 26: 4, 27: 8}
_UINT, _NEGATIVE, _BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = range(8)
_BYTE: Final = tuple(bytes((value,)) for value in range(256))
_ONLY_INT: Final = {int}
_bytes_new = bytes.__new__

# Nearly every item of a node is one of these, and each is known good from its first bytes alone, so the
# regular-expression engine checks a whole run of them in one call. Alternatives are tried in order: frequent
# ones first.
_SHORT: Final = sorted(range(24), key=lambda size: (size not in (2, 4, 5, 6, 7, 8, 10, 14), size))
_ITEM: Final = b"|".join(
    (
        rb"\x19[\x01-\xff].|[\x00-\x17]|\x18[\x18-\xff]|\x1a(?!\x00\x00)....",  # unsigned below 2^32
        re.escape(LINK_HEAD) + rb"\x01[\x55\x71][\x12\x1e]\x20.{32}",
        rb"\x58\x24.{36}",  # a CID as bytes
        rb"[\x80-\x97\xa0-\xb7\xf4-\xf6]",  # heads of short lists and maps; false, true, null
        *(rb"[\x%02x\x%02x].{%d}" % (0x40 + size, 0x60 + size, size) for size in _SHORT),  # short bytes and text
    )
)
_PLAIN_ITEM: Final = re.compile(_ITEM, re.DOTALL)
_PLAIN_RUN: Final = re.compile(b"(?:" + _ITEM + b")*+", re.DOTALL)  # possessive: it never backtracks


def _pack(layout: str) -> Callable[..., bytes]:
    return struct.Struct(layout).pack


_pack_8, _pack_16, _pack_32, _pack_64 = map(_pack, (">BB", ">BH", ">BL", ">BQ"))


def head(major: int, value: int) -> bytes:
    """Encode an item head: major type and argument, in the shortest form."""
    first = major << 5
    if value < 24:
        return _BYTE[first | value]
    if value < 1 << 8:
        return _pack_8(first | 24, value)
    if value < 1 << 16:
        return _pack_16(first | 25, value)
    if value < 1 << 32:
        return _pack_32(first | 26, value)
    return _pack_64(first | 27, value)


def encode_int(value: int) -> bytes:
    """Encode one integer. Raises `LimitExceeded` beyond 64 signed bits."""
    if not -MAX_INT - 1 <= value <= MAX_INT:
        raise LimitExceeded(f"integer {value} does not fit 64 signed bits")
    return head(_UINT, value) if value >= 0 else head(_NEGATIVE, -1 - value)


class _TokenTable(dict[int, bytes]):
    """Encodings of token ids seen so far: a text uses few of them, again and again."""

    MOST_ENTRIES = 1 << 16

    def __missing__(self, token: int) -> bytes:
        if not 0 <= token <= MAX_TOKEN:
            raise MalformedCbor(f"token id {token} is not between 0 and {MAX_TOKEN}")
        data = encode_int(token)
        if len(self) < self.MOST_ENTRIES:
            self[token] = data
        return data


_encode_token = _TokenTable().__getitem__


def encode_tokens(tokens: Sequence[int]) -> bytes:
    """Encode a list of token ids. Raises `MalformedCbor` for anything but integers from 0 to `MAX_TOKEN`."""
    if tokens and {*map(type, tokens)} != _ONLY_INT:  # True and 1.0 would find the entry of 1
        raise MalformedCbor("token ids must be integers")
    return encode_list(map(_encode_token, tokens), len(tokens))


def encode_text(value: str) -> bytes:
    """Encode one text string. Raises `MalformedCbor` where UTF-8 has no form for it (half a surrogate)."""
    try:
        data = value.encode()
    except UnicodeEncodeError as error:
        raise MalformedCbor(f"text without a UTF-8 form: {value!r:.60}") from error
    return head(_TEXT, len(data)) + data


def encode_bytes(value: bytes) -> bytes:
    """Encode one byte string."""
    return head(_BYTES, len(value)) + value


def encode_link(value: Cid) -> bytes:
    """Encode one link: tag 42 around a CID."""
    return LINK_HEAD + value


def list_head(count: int) -> bytes:
    """Encode what stands before a list of `count` items."""
    return head(_ARRAY, count)


def encode_list(items: Iterable[bytes], count: int) -> bytes:
    """Encode a list of `count` items that are encoded already."""
    return list_head(count) + b"".join(items)


def map_head(count: int) -> bytes:
    """Encode what stands before a map of `count` entries."""
    return head(_MAP, count)


def key_order(name: str) -> tuple[int, bytes]:
    """Sort key that puts map keys in dag-cbor order: shorter first, then by bytes."""
    data = name.encode()
    return len(data), data


def encode_map(pairs: Iterable[tuple[str, bytes]]) -> bytes:
    """Encode a map whose values are encoded already; keys are put in dag-cbor order."""
    pairs = list(pairs)
    if not {type(name) for name, _ in pairs} <= {str}:
        raise MalformedCbor("map key that is not text")
    entries = sorted((len(key := encode_text(name)), key, value) for name, value in pairs)
    return map_head(len(entries)) + b"".join(key + value for _, key, value in entries)


def encode(value: Value) -> bytes:
    """Encode any value as canonical dag-cbor, and nothing that `decode` would refuse.

    Raises `MalformedCbor` for a type dag-cbor lacks here (floats included), `LimitExceeded` for size, depth
    and count.
    """
    data = _encode(value, MAX_NODE_DEPTH)
    scan(data)
    return data


_SCALARS: Final[dict[type, Callable[[Any], bytes]]] = {
    int: encode_int,
    Cid: encode_link,
    bytes: encode_bytes,
    str: encode_text,
    bool: lambda value: TRUE if value else FALSE,
    type(None): lambda _: NULL,
}


def _encode(value: Any, depth: int) -> bytes:
    kind = type(value)  # exact types only: True is an int to isinstance, and a Cid is bytes
    if kind in _SCALARS:
        return _SCALARS[kind](value)
    if depth == 0:
        raise LimitExceeded(f"more than {MAX_NODE_DEPTH} containers inside one another")
    if kind is list:
        return encode_list([_encode(item, depth - 1) for item in value], len(value))
    if kind is dict:
        return encode_map([(key, _encode(item, depth - 1)) for key, item in value.items()])
    raise MalformedCbor(
        f"dag-cbor has no {kind.__name__} here",
        hint="nodes hold integers, text, bytes, lists, maps and links",
    )


def _fail(offset: int, reason: str) -> MalformedCbor:
    return MalformedCbor(f"dag-cbor at byte {offset}: {reason}", offset=offset, reason=reason)


def scan(data: bytes) -> None:
    """Check the head of every item, building nothing, in time linear in the length.

    Refuses tags other than a whole CID link, floats, indefinite and long forms, strings that run past the end
    and counts no input could fill. Raises `MalformedCbor` or `LimitExceeded`.
    """
    size, at, items = len(data), 0, 0
    if size > MAX_NODE_BYTES:
        raise LimitExceeded(f"node of {size} bytes, limit {MAX_NODE_BYTES}", size_bytes=size)
    # An item takes a byte at least, so only a long input can hold too many: there they are counted one by
    # one.
    plain = _PLAIN_RUN if size <= MAX_NODE_ITEMS else _PLAIN_ITEM
    while at < size:
        items += 1
        if items > MAX_NODE_ITEMS:
            raise LimitExceeded(f"node of more than {MAX_NODE_ITEMS} values", offset=at)
        found = plain.match(data, at)
        at = found.end() if found and found.end() > at else _other_end(data, at)


def _other_end(data: bytes, at: int) -> int:
    """Check the head of an item that is not among the plain ones; give the offset after it and its string."""
    major, info = data[at] >> 5, data[at] & 31
    if major == _TAG:
        raise _fail(at, "tag that is not a whole link to a CID of a supported form")
    if major == _SIMPLE:
        raise _fail(at, "float, undefined or simple value")
    if info > 23 and info not in _WIDTHS:
        raise _fail(at, "indefinite length or reserved form")
    width = _WIDTHS.get(info, 0)
    after = at + 1 + width
    if after > len(data):
        raise _fail(at, "ends inside a head")
    argument = int.from_bytes(data[at + 1 : after], "big") if width else info
    if width and (argument < 24 or (width > 1 and argument >> 4 * width == 0)):
        raise _fail(at, "not in its shortest form")
    if major in (_ARRAY, _MAP) and argument > len(data) - after:
        raise _fail(at, "more items than bytes")
    if major not in (_BYTES, _TEXT):
        return after
    if argument > len(data) - after:
        raise _fail(at, "ends inside a string")
    if major == _TEXT and argument > MAX_TEXT_BYTES:
        raise LimitExceeded(f"text of {argument} bytes, limit {MAX_TEXT_BYTES}", size_bytes=argument)
    return after + argument


def _link(tag: cbor2.CBORTag, _immutable: bool) -> Cid:  # noqa: FBT001
    return _bytes_new(Cid, tag.value[1:])  # the scan has checked the form


def parse(data: Buffer) -> Any:
    """Scan and build a value, links as `Cid`, *without* the re-encode check: the caller must make it.

    Raises `MalformedCbor` or `LimitExceeded`.
    """
    if type(data) is not bytes:
        data = bytes(data)
    scan(data)
    try:
        # Keys of other types than text could be chosen to collide, and a map of them would take quadratic
        # time.
        return cbor2.loads(data, max_depth=MAX_NODE_DEPTH, strict_hashable_types=True, tag_hook=_link)
    except cbor2.CBORDecodeError as error:
        if "nesting depth" in str(error):
            raise LimitExceeded(f"more than {MAX_NODE_DEPTH} containers inside one another") from error
        raise _fail(0, str(error)) from error


def not_canonical() -> MalformedCbor:
    """Build the error for bytes that differ from the encoding of what they were read as."""
    return _fail(0, "not canonical: keys out of order or repeated, or bytes after the value")


def check_canonical(data: Buffer, encoded: bytes) -> None:
    """Compare received bytes with the encoding of what they were read as. Raises `MalformedCbor`."""
    if encoded != data:
        raise not_canonical()


def decode(data: Buffer) -> Value:
    """Decode canonical dag-cbor of any shape, links as `Cid`. Raises `MalformedCbor` or `LimitExceeded`."""
    value: Value = parse(data)
    check_canonical(data, _encode(value, MAX_NODE_DEPTH))
    return value
