"""Strict dag-json, both ways: JSON with links and bytes, in which one value has one encoding.

Keys stand in the order of their UTF-8 bytes, there is no white space, and a map with the one key `/` is a link or
bytes. Maps that only look like those have no dag-json form and are refused in both directions, and so is JSON of any
other form than the one `encode` gives.

>>> link = parse_cid("QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWKtJDd")
>>> encode({"b": b"KV", "a": [1, 1.0, link]}).decode()
'{"a":[1,1.0,{"/":"QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWKtJDd"}],"b":{"/":{"bytes":"S1Y"}}}'
>>> decode(b'{"a":{"/":{"bytes":"S1Y"}}}')
{'a': b'KV'}
>>> decode(b'{"b":1,"a":2}')
Traceback (most recent call last):
...
cyberkv.cybergraph.errors.MalformedJson: dag-json: not canonical: white space, order of keys, or another form
"""

import base64
import binascii
import json
import math
import re
from typing import Any, Final

from .cid import Buffer, Cid
from .errors import LimitExceeded, MalformedCid, MalformedJson
from .foreign import AnyValue, ForeignCid, parse_cid
from .limits import MAX_FOREIGN_DEPTH, MAX_JSON_BYTES, MAX_NODE_ITEMS

LEAST_INT: Final = -(1 << 63)
MOST_INT: Final = (1 << 64) - 1
"""Integers beyond these have no form in dag-cbor, so a node that holds one could not be converted."""
_INT_CHARS: Final = 20

# The closing quote is optional, so that a match never fails and the search never goes back.
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_text: Final = json.JSONEncoder(ensure_ascii=False).encode


def encode(value: AnyValue) -> bytes:
    """Encode any value. Raises `MalformedJson` for what dag-json lacks, `LimitExceeded` for size, depth and count."""
    data = _encoded(value)
    _check_size(data)
    return data


def decode(data: Buffer) -> AnyValue:
    """Decode dag-json of any shape, links as `Cid` or `ForeignCid`. Raises `MalformedJson` or `LimitExceeded`."""
    data = bytes(data)
    _check_size(data)
    try:
        item = _parse(data.decode())
    except (ValueError, RecursionError) as error:
        if isinstance(error, RecursionError):
            raise _too_deep() from error
        raise _fail(str(error)) from error
    value = _value(item, MAX_FOREIGN_DEPTH)
    if _encoded(value) != data:
        raise _fail("not canonical: white space, order of keys, or another form")
    return value


def _encoded(value: AnyValue) -> bytes:
    try:
        return _encode(value, MAX_FOREIGN_DEPTH).encode()
    except UnicodeEncodeError as error:
        raise _fail("text without a UTF-8 form") from error


def _check_size(data: bytes) -> None:
    if len(data) > MAX_JSON_BYTES:
        raise LimitExceeded(f"dag-json of {len(data)} bytes, limit {MAX_JSON_BYTES}", size_bytes=len(data))
    if len(data) > MAX_NODE_ITEMS:  # an item takes a byte at least
        bare = _STRING.sub(b"", data)
        if sum(map(bare.count, (b",", b"[", b"{"))) >= MAX_NODE_ITEMS:
            raise LimitExceeded(f"dag-json of more than {MAX_NODE_ITEMS} values")


def _encode(value: Any, depth: int) -> str:
    kind = type(value)  # exact types only: True is an int to isinstance, and a Cid is bytes
    if kind is str:
        return _text(value)
    if kind is int:
        if not LEAST_INT <= value <= MOST_INT:
            raise LimitExceeded(f"integer of {value.bit_length()} bits, which dag-cbor has no form for")
        return str(value)
    if kind is bool or value is None:
        return "null" if value is None else "true" if value else "false"
    if kind in (Cid, ForeignCid):
        return f'{{"/":"{value}"}}'
    if kind is bytes:
        return f'{{"/":{{"bytes":"{base64.b64encode(value).decode().rstrip("=")}"}}}}'
    if kind is float:
        return _encode_float(value)
    if depth == 0:
        raise _too_deep()
    if kind is list:
        return f"[{','.join([_encode(item, depth - 1) for item in value])}]"
    if kind is dict:
        return _encode_map(value, depth)
    raise _fail(f"no form for {kind.__name__}")


def _encode_float(value: float) -> str:
    if not math.isfinite(value):
        raise _fail("no form for infinity and what is no number")
    mantissa, e, exponent = repr(value).partition("e")
    return mantissa + ("" if "." in mantissa else ".0") + e + exponent


def _encode_map(value: dict[Any, Any], depth: int) -> str:
    if not {*map(type, value)} <= {str}:
        raise _fail("map key that is not text")
    # Python compares text by code points, which is the order of the UTF-8 bytes.
    entries = [f"{_text(key)}:{_encode(value[key], depth - 1)}" for key in sorted(value)]
    if value and min(value) == "/" and _is_reserved(value["/"]):
        raise _fail("a map that begins with the key '/' and looks like a link or bytes")
    return f"{{{','.join(entries)}}}"


def _is_reserved(inner: Any) -> bool:
    """Whether a map whose first key is `/` has a value there as only links and bytes may have it."""
    if type(inner) is str:
        return True
    return type(inner) is dict and bool(inner) and min(inner) == "bytes" and type(inner["bytes"]) is str


def _parse(text: str) -> Any:
    return json.loads(text, parse_int=_int, parse_constant=_no_constant)


def _int(digits: str) -> int:
    if len(digits) > _INT_CHARS:
        raise ValueError("integer that does not fit 64 bits")
    return int(digits)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _value(item: Any, depth: int) -> AnyValue:
    """Turn parsed JSON into a value: maps with the one key `/` into links and bytes."""
    if type(item) is dict and len(item) == 1 and "/" in item:
        inner = item["/"]
        if type(inner) is str:
            try:
                return parse_cid(inner)
            except MalformedCid as error:
                raise _fail(f"link: {error}") from error
        if type(inner) is dict and len(inner) == 1 and type(encoded := inner.get("bytes")) is str:
            try:
                return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
            except (binascii.Error, ValueError) as error:
                raise _fail(f"bytes that are not base64: {error}") from error
    if type(item) in (list, dict) and depth == 0:
        raise _too_deep()
    if type(item) is list:
        return [_value(each, depth - 1) for each in item]
    if type(item) is dict:
        return {key: _value(each, depth - 1) for key, each in item.items()}
    scalar: AnyValue = item
    return scalar


def _fail(reason: str) -> MalformedJson:
    return MalformedJson(f"dag-json: {reason:.200}", reason=reason[:200])


def _too_deep() -> LimitExceeded:
    return LimitExceeded(f"more than {MAX_FOREIGN_DEPTH} containers inside one another")
