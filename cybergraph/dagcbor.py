"""Strict dag-cbor, both ways: one value has one encoding, and nothing else is accepted.

Strictness is what makes a CID a name: if two byte strings could mean one node, two CIDs would name it. Decoding runs
in three steps, cheapest first: `scan` walks the item heads without building anything and refuses every form that
dag-cbor lacks; cbor2 builds the value under a depth bound; the value is encoded again and must give the same bytes,
which catches what a single head cannot show (key order, repeated keys, missing or trailing bytes).

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
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, TypeAlias, Union

import cbor2

from .cid import CID_PREFIXES, Buffer, Cid
from .errors import LimitExceeded, MalformedCbor
from .limits import MAX_NODE_BYTES, MAX_NODE_DEPTH, MAX_TEXT_BYTES

Value: TypeAlias = Union[None, bool, int, str, bytes, Cid, list["Value"], dict[str, "Value"]]  # noqa: UP007

MAX_INT: Final = (1 << 63) - 1
"""Integers outside ±2^63 do not survive other languages' decoders."""

LINK_HEAD: Final = bytes.fromhex("d82a582500")
"""Tag 42, a byte string of 37, and the identity multibase prefix: what stands before every CID."""

_WIDTHS: Final = {24: 1, 25: 2, 26: 4, 27: 8}
_UINT, _NEGATIVE, _BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = range(8)

# Nearly every item of a node is one of these, and each is known good from its first bytes alone, so one pass of the
# regular-expression engine checks a whole run of them. The quantifier is possessive: it never backtracks.
_PLAIN: Final = re.compile(
    rb"(?:[\x00-\x17]|\x18[\x18-\xff]|\x19(?!\x00)..|\x1a(?!\x00\x00)...."  # unsigned below 2^32
    rb"|[\x80-\x97\xa0-\xb7]|[\xf4-\xf6]"  # heads of short lists and maps; false, true, null
    rb"|" + re.escape(LINK_HEAD) + b"(?:" + b"|".join(map(re.escape, sorted(CID_PREFIXES))) + rb").{32}"
    rb"|\x58\x24.{36}|" + b"|".join(rb"[\x%02x\x%02x].{%d}" % (0x40 + n, 0x60 + n, n) for n in range(24)) + rb")*+",
    re.DOTALL,
)


def head(major: int, value: int) -> bytes:
    """Encode an item head: major type and argument, in the shortest form."""
    if value < 24:
        return bytes((major << 5 | value,))
    for info, width in _WIDTHS.items():
        if value < 1 << 8 * width:
            return bytes((major << 5 | info,)) + value.to_bytes(width, "big")
    raise LimitExceeded(f"integer {value} does not fit 64 bits")


@lru_cache(1 << 16)
def encode_int(value: int) -> bytes:
    """Encode one integer. Raises `LimitExceeded` beyond 64 bits."""
    if not -MAX_INT <= value <= MAX_INT:
        raise LimitExceeded(f"integer {value} does not fit 64 bits")
    return head(_UINT, value) if value >= 0 else head(_NEGATIVE, -1 - value)


def encode_text(value: str) -> bytes:
    """Encode one text string."""
    data = value.encode()
    return head(_TEXT, len(data)) + data


def encode_bytes(value: bytes) -> bytes:
    """Encode one byte string."""
    return head(_BYTES, len(value)) + value


def encode_link(value: Cid) -> bytes:
    """Encode one link: tag 42 around a CID."""
    return LINK_HEAD + value


def encode_list(items: Iterable[bytes], count: int) -> bytes:
    """Encode a list of `count` items that are encoded already."""
    return head(_ARRAY, count) + b"".join(items)


def encode_map(pairs: Iterable[tuple[str, bytes]]) -> bytes:
    """Encode a map whose values are encoded already; keys are put in dag-cbor order (length, then bytes)."""
    keyed = sorted((len(key := name.encode()), key, value) for name, value in pairs)
    return head(_MAP, len(keyed)) + b"".join(head(_TEXT, size) + key + value for size, key, value in keyed)


def encode(value: Value) -> bytes:
    """Encode any value as canonical dag-cbor. Raises `MalformedCbor` for a type dag-cbor lacks (floats included)."""
    match value:
        case Cid():
            return encode_link(value)
        case str():
            return encode_text(value)
        case bool():
            return b"\xf5" if value else b"\xf4"
        case int():
            return encode_int(value)
        case bytes():
            return encode_bytes(value)
        case list():
            return encode_list(map(encode, value), len(value))
        case dict() if all(isinstance(key, str) for key in value):
            return encode_map((key, encode(item)) for key, item in value.items())
        case None:
            return b"\xf6"
    raise MalformedCbor(
        f"dag-cbor has no {type(value).__name__} here", hint="nodes hold integers, text, bytes, lists, maps and links"
    )


def _fail(offset: int, reason: str) -> MalformedCbor:
    return MalformedCbor(f"dag-cbor at byte {offset}: {reason}", offset=offset, reason=reason)


def scan(data: bytes) -> None:
    """Check the head of every item, building nothing, in time linear in the length.

    Refuses tags other than a whole CID link, floats, indefinite and long forms, strings that run past the end and
    counts no input could fill. Raises `MalformedCbor` or `LimitExceeded`.
    """
    if len(data) > MAX_NODE_BYTES:
        raise LimitExceeded(f"node of {len(data)} bytes, limit {MAX_NODE_BYTES}", size_bytes=len(data))
    size, at = len(data), 0
    while (at := _plain_end(data, at)) < size:
        major, info = data[at] >> 5, data[at] & 31
        if major == _TAG:
            raise _fail(at, "tag that is not a whole link to a CID of a supported form")
        if major == _SIMPLE:
            raise _fail(at, "float, undefined or simple value")
        if info not in _WIDTHS and info > 23:
            raise _fail(at, "indefinite length or reserved form")
        width = _WIDTHS.get(info, 0)
        after = at + 1 + width
        if after > size:
            raise _fail(at, "ends inside a head")
        argument = int.from_bytes(data[at + 1 : after], "big") if width else info
        if width and (argument < 24 or argument >> 4 * width == 0 and width > 1):
            raise _fail(at, "not in its shortest form")
        if major in (_BYTES, _TEXT):
            if argument > size - after:
                raise _fail(at, "ends inside a string")
            if major == _TEXT and argument > MAX_TEXT_BYTES:
                raise LimitExceeded(f"text of {argument} bytes, limit {MAX_TEXT_BYTES}", size_bytes=argument)
            after += argument
        elif major in (_ARRAY, _MAP) and argument > size - after:  # every item takes a byte at least
            raise _fail(at, "more items than bytes")
        at = after


def _plain_end(data: bytes, at: int) -> int:
    run = _PLAIN.match(data, at)
    return run.end() if run else at


def parse(data: Buffer) -> Any:
    """Scan and build a value, links as `cbor2.CBORTag`, *without* the re-encode check: the caller must make it.

    Raises `MalformedCbor` or `LimitExceeded`.
    """
    data = bytes(data)
    scan(data)
    try:
        return cbor2.loads(data, max_depth=MAX_NODE_DEPTH)
    except (cbor2.CBORDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _fail(0, str(error)) from error


def as_link(item: object) -> Cid:
    """Turn what `parse` gives for a link into its `Cid`. `scan` has checked the form. Raises `MalformedCbor`."""
    if type(item) is not cbor2.CBORTag:
        raise MalformedCbor(f"expected a link, got {type(item).__name__}")
    return Cid(item.value[1:])


def _resolve(item: Any) -> Value:
    match item:
        case cbor2.CBORTag():
            return as_link(item)
        case list():
            return [_resolve(each) for each in item]
        case dict():
            return {key: _resolve(each) for key, each in item.items()}
    return item  # type: ignore[no-any-return]


def check_canonical(data: Buffer, encoded: bytes) -> None:
    """Compare received bytes with the encoding of what they were read as. Raises `MalformedCbor`."""
    if encoded != data:
        raise _fail(0, "not canonical: keys out of order or repeated, or bytes after the value")


def decode(data: Buffer) -> Value:
    """Decode canonical dag-cbor of any shape, links as `Cid`. Raises `MalformedCbor` or `LimitExceeded`."""
    value = _resolve(parse(data))
    check_canonical(data, encode(value))
    return value
