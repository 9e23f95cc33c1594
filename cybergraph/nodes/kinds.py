# ruff: noqa: D102 -- `Kind` documents the two verbs once, for all.
"""The kinds of value a node field can hold.

A kind has two verbs. `encode` checks a value and gives its bytes. `read` turns what the CBOR parser gives
into what the dataclass holds, where these differ (a list into a tuple). Decoding encodes again to prove
canonical form, so each check stands in one place, in `encode`, and holds in both directions.
"""

from typing import Any

from ..cid import CID_BYTES, CID_PREFIXES, Cid, Codec
from ..dagcbor import (
    FALSE,
    LINK_HEAD,
    MAX_INT,
    NULL,
    TRUE,
    encode_bytes,
    encode_int,
    encode_list,
    encode_map,
    encode_text,
    encode_tokens,
    list_head,
)
from ..errors import MalformedNode

_CODEC_BYTES: dict[Codec, int] = {"raw": 0x55, "dag-cbor": 0x71}
_bytes_new = bytes.__new__
_CID_HEAD = encode_bytes(bytes(CID_BYTES))[:-CID_BYTES]


def wrong(expected: str, got: object) -> MalformedNode:
    """Build the error for a value of the wrong kind."""
    return MalformedNode(f"expected {expected}, got {got!r:.60}", expected=expected, got=f"{got!r:.60}")


def _other_bytes(expected: str, got: object) -> MalformedNode:
    """Say what was found instead of bytes without repeating it: bytes may be secret keys or private text."""
    found = f"{len(got)} bytes" if isinstance(got, bytes) else type(got).__name__
    return MalformedNode(f"expected {expected}, got {found}", expected=expected, got=found)


class Kind:
    """One kind of field value."""

    def read(self, item: Any) -> Any:
        """Convert a parsed CBOR item. Raises `MalformedNode` or `MalformedCid` where it cannot."""
        return item

    def encode(self, value: Any) -> bytes:
        """Check a value and encode it. Raises `MalformedNode`."""
        raise NotImplementedError


class Uint(Kind):
    """An unsigned integer from `least` to `most`."""

    def __init__(self, most: int = MAX_INT, *, least: int = 0) -> None:
        self.least = least
        self.most = most

    def encode(self, value: int) -> bytes:
        if type(value) is not int or not self.least <= value <= self.most:
            raise wrong(f"an integer from {self.least} to {self.most}", value)
        return encode_int(value)


class Bool(Kind):
    """True or false."""

    def encode(self, value: bool) -> bytes:  # noqa: FBT001
        if type(value) is not bool:
            raise wrong("true or false", value)
        return TRUE if value else FALSE


class Text(Kind):
    """Text of at most `most_bytes` in UTF-8, or one of `choices`."""

    def __init__(self, most_bytes: int = 256, *, choices: tuple[str, ...] = ()) -> None:
        self.most_bytes = most_bytes
        self.choices = choices

    def encode(self, value: str) -> bytes:
        if type(value) is not str:
            raise wrong("text", value)
        if self.choices and value not in self.choices:
            raise wrong(f"one of {', '.join(self.choices)}", value)
        data = encode_text(value)
        if len(data) > self.most_bytes and len(value.encode()) > self.most_bytes:
            raise wrong(f"text of at most {self.most_bytes} bytes", value)
        return data


class Bytes(Kind):
    """A byte string of exactly `size_bytes`."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    def encode(self, value: bytes) -> bytes:
        if type(value) is not bytes or len(value) != self.size_bytes:
            raise _other_bytes(f"{self.size_bytes} bytes", value)
        return encode_bytes(value)


class Blob(Kind):
    """A byte string of `least` to `most_bytes` bytes."""

    def __init__(self, most_bytes: int, *, least: int = 1) -> None:
        self.most_bytes = most_bytes
        self.least = least

    def encode(self, value: bytes) -> bytes:
        if type(value) is not bytes or not self.least <= len(value) <= self.most_bytes:
            raise _other_bytes(f"{self.least} to {self.most_bytes} bytes", value)
        return encode_bytes(value)


class CidBytes(Kind):
    """A CID as a plain byte string: named, but not linked, so that no walker follows it."""

    def __init__(self, codec: Codec = "dag-cbor") -> None:
        self.codec = codec
        self.codec_byte = _CODEC_BYTES[codec]

    def read(self, item: Any) -> Cid:
        if type(item) is bytes and len(item) == CID_BYTES and item.startswith(CID_PREFIXES):
            return _bytes_new(Cid, item)
        raise wrong("the bytes of a CID", item)

    def encode(self, value: Cid) -> bytes:
        if type(value) is not Cid or value[1] != self.codec_byte:
            raise wrong(f"the CID of a {self.codec} block", value)
        return _CID_HEAD + value


class Link(Kind):
    """A link to a node (`dag-cbor`) or a leaf (`raw`)."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.codec_byte = _CODEC_BYTES[codec]

    def encode(self, value: Cid) -> bytes:
        if type(value) is not Cid or value[1] != self.codec_byte:
            raise wrong(f"a link to a {self.codec} block", value)
        return LINK_HEAD + value


class Links(Kind):
    """A list of `least` to `most` links, of one codec or of any, held as a tuple: in one loop, for a block has many."""

    def __init__(self, codec: Codec | None, most: int, *, least: int = 0) -> None:
        self.codec = codec
        self.codec_bytes = frozenset(_CODEC_BYTES.values() if codec is None else (_CODEC_BYTES[codec],))
        self.least = least
        self.most = most

    def read(self, item: Any) -> tuple[Cid, ...]:
        if type(item) is not list:
            raise wrong("a list", item)
        return tuple(item)

    def encode(self, value: tuple[Cid, ...]) -> bytes:
        if type(value) is not tuple or not self.least <= len(value) <= self.most:
            raise wrong(f"{self.least} to {self.most} links", value)
        for cid in value:
            if type(cid) is not Cid or cid[1] not in self.codec_bytes:
                raise wrong(f"links to {self.codec or 'any'} blocks", value)
        return list_head(len(value)) + LINK_HEAD.join((b"", *value))


class Maybe(Kind):
    """Null, or a value of another kind."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def read(self, item: Any) -> Any:
        return None if item is None else self.kind.read(item)

    def encode(self, value: Any) -> bytes:
        return NULL if value is None else self.kind.encode(value)


class Listing(Kind):
    """A list of `least` to `most` values of one kind, held as a tuple."""

    def __init__(self, kind: Kind, most: int, *, least: int = 0) -> None:
        self.kind = kind
        self.least = least
        self.most = most
        self.read_each = None if type(kind).read is Kind.read else kind.read

    def read(self, item: Any) -> tuple[Any, ...]:
        if type(item) is not list:
            raise wrong("a list", item)
        return tuple(item if self.read_each is None else map(self.read_each, item))

    def encode(self, value: tuple[Any, ...]) -> bytes:
        if type(value) is not tuple or not self.least <= len(value) <= self.most:
            raise wrong(f"{self.least} to {self.most} values", value)
        return encode_list(map(self.kind.encode, value), len(value))


class Tokens(Kind):
    """A list of `least` to `most` token ids, held as a tuple."""

    def __init__(self, most: int, *, least: int = 0) -> None:
        self.least = least
        self.most = most

    def read(self, item: Any) -> tuple[int, ...]:
        if type(item) is not list:
            raise wrong("a list", item)
        return tuple(item)

    def encode(self, value: tuple[int, ...]) -> bytes:
        if type(value) is not tuple or not self.least <= len(value) <= self.most:
            raise wrong(f"{self.least} to {self.most} token ids", value)
        return encode_tokens(value)


class TextMap(Kind):
    """A small map of text to text, held as a sorted tuple of pairs (a frozen dataclass must be hashable)."""

    def __init__(self, most: int = 32) -> None:
        self.most = most
        self.text = Text()

    def read(self, item: Any) -> tuple[tuple[str, str], ...]:
        if type(item) is not dict:
            raise wrong("a map", item)
        return tuple(sorted(item.items()))

    def encode(self, value: tuple[tuple[str, str], ...]) -> bytes:
        pairs = [(key, self.text.encode(key) and self.text.encode(item)) for key, item in value]
        if type(value) is not tuple or len(value) > self.most or list(value) != sorted(dict(value).items()):
            raise wrong(f"at most {self.most} pairs of text, sorted, keys distinct", value)
        return encode_map(pairs)
