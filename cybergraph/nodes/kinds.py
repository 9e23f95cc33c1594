"""The kinds of value a node field can hold.

A kind has two verbs. `read` turns what the CBOR parser gives into what the dataclass holds (a list into a tuple, a
tag into a `Cid`). `encode` checks a value and gives its bytes. Decoding encodes again to prove canonical form, so each
check stands in one place and holds in both directions.
"""

from typing import Any, Protocol

from ..cid import CID_BYTES, Cid, Codec
from ..dagcbor import (
    MAX_INT,
    as_link,
    encode_bytes,
    encode_int,
    encode_link,
    encode_list,
    encode_map,
    encode_text,
)
from ..errors import MalformedNode

NULL = b"\xf6"


def wrong(expected: str, got: object) -> MalformedNode:
    """Build the error for a value of the wrong kind."""
    return MalformedNode(f"expected {expected}, got {got!r:.60}", expected=expected, got=repr(got)[:60])


class Kind(Protocol):
    """One kind of field value."""

    def read(self, item: Any) -> Any:
        """Convert a parsed CBOR item. Raises `MalformedNode`, `MalformedCbor` or `MalformedCid`."""

    def encode(self, value: Any) -> bytes:
        """Check a value and encode it. Raises `MalformedNode`."""


class Uint:
    """An unsigned integer up to `most`."""

    def __init__(self, most: int = MAX_INT) -> None:
        self.most = most

    def read(self, item: Any) -> int:
        if type(item) is not int:
            raise wrong("an integer", item)
        return item

    def encode(self, value: int) -> bytes:
        if type(value) is not int or not 0 <= value <= self.most:
            raise wrong(f"an integer from 0 to {self.most}", value)
        return encode_int(value)


class Bool:
    """True or false."""

    def read(self, item: Any) -> bool:
        if type(item) is not bool:
            raise wrong("true or false", item)
        return item

    def encode(self, value: bool) -> bytes:  # noqa: FBT001
        return b"\xf5" if value else b"\xf4"


class Text:
    """Text of at most `most_bytes` in UTF-8, or one of `choices`."""

    def __init__(self, most_bytes: int = 256, choices: tuple[str, ...] = ()) -> None:
        self.most_bytes = most_bytes
        self.choices = choices

    def read(self, item: Any) -> str:
        if type(item) is not str:
            raise wrong("text", item)
        return item

    def encode(self, value: str) -> bytes:
        if type(value) is not str or self.choices and value not in self.choices:
            raise wrong(f"one of {', '.join(self.choices)}" if self.choices else "text", value)
        data = encode_text(value)
        if len(data) > self.most_bytes + 5:
            raise wrong(f"text of at most {self.most_bytes} bytes", value)
        return data


class Bytes:
    """A byte string of exactly `size_bytes`."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    def read(self, item: Any) -> bytes:
        if type(item) is not bytes:
            raise wrong("bytes", item)
        return item

    def encode(self, value: bytes) -> bytes:
        if len(value) != self.size_bytes:
            raise wrong(f"{self.size_bytes} bytes", value)
        return encode_bytes(value)


class CidBytes:
    """A CID as a plain byte string: named, but not linked, so that no walker follows it."""

    def read(self, item: Any) -> Cid:
        if type(item) is not bytes or len(item) != CID_BYTES:
            raise wrong("the 36 bytes of a CID", item)
        return Cid(item)

    def encode(self, value: Cid) -> bytes:
        return encode_bytes(Cid(value))


class Link:
    """A link to a node (`dag-cbor`) or a leaf (`raw`)."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec

    def read(self, item: Any) -> Cid:
        return as_link(item)

    def encode(self, value: Cid) -> bytes:
        if type(value) is not Cid or value.codec != self.codec:
            raise wrong(f"a link to a {self.codec} block", value)
        return encode_link(value)


class Maybe:
    """Null, or a value of another kind."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def read(self, item: Any) -> Any:
        return None if item is None else self.kind.read(item)

    def encode(self, value: Any) -> bytes:
        return NULL if value is None else self.kind.encode(value)


class Listing:
    """A list of `least` to `most` values of one kind, held as a tuple."""

    def __init__(self, kind: Kind, most: int, least: int = 0) -> None:
        self.kind = kind
        self.least = least
        self.most = most

    def read(self, item: Any) -> tuple[Any, ...]:
        if type(item) is not list:
            raise wrong("a list", item)
        if len(item) > self.most:
            raise wrong(f"a list of at most {self.most}", len(item))
        return tuple(map(self.kind.read, item))

    def encode(self, value: tuple[Any, ...]) -> bytes:
        if not self.least <= len(value) <= self.most:
            raise wrong(f"a list of {self.least} to {self.most}", len(value))
        return encode_list(map(self.kind.encode, value), len(value))


class Tokens(Listing):
    """A list of token ids. Checked as a whole: token lists are most of a block node."""

    MOST_TOKEN = (1 << 32) - 1

    def __init__(self, most: int, least: int = 0) -> None:
        super().__init__(Uint(self.MOST_TOKEN), most, least)

    def read(self, item: Any) -> tuple[int, ...]:
        if type(item) is not list:
            raise wrong("a list", item)
        return tuple(item)

    def encode(self, value: tuple[int, ...]) -> bytes:
        if not self.least <= len(value) <= self.most:
            raise wrong(f"{self.least} to {self.most} tokens", len(value))
        if value and (set(map(type, value)) != {int} or min(value) < 0 or max(value) > self.MOST_TOKEN):
            raise wrong("token ids", value)
        return encode_list(map(encode_int, value), len(value))


class TextMap:
    """A small map of text to text, held as a sorted tuple of pairs (a frozen dataclass must be hashable)."""

    def __init__(self, most: int = 32) -> None:
        self.most = most
        self.text = Text()

    def read(self, item: Any) -> tuple[tuple[str, str], ...]:
        if type(item) is not dict or len(item) > self.most:
            raise wrong(f"a map of at most {self.most} entries", item)
        return tuple(sorted((self.text.read(key), self.text.read(value)) for key, value in item.items()))

    def encode(self, value: tuple[tuple[str, str], ...]) -> bytes:
        if len(dict(value)) != len(value) or len(value) > self.most:
            raise wrong(f"a map of at most {self.most} distinct keys", value)
        return encode_map((key, self.text.encode(item)) for key, item in value)

