"""`cyberkv/conversation`: the root that names a whole conversation."""

from dataclasses import dataclass
from typing import ClassVar

from ..cid import Cid
from ..limits import MAX_BLOCK_TOKENS, MAX_LEAVES_PER_BLOCK, MAX_SEGMENTS, MAX_TITLE_BYTES
from .base import Nested, Node, Record
from .kinds import Kind, Link, Listing, Maybe, Text, Tokens, Uint


@dataclass(frozen=True, slots=True)
class Tail(Record):
    """The tokens after the last full block. Never indexed, never shared, dropped with its root."""

    tokens: tuple[int, ...]
    prefilled: int
    """How many of the tail's rows, from its start, came from a canonical step; the rest were decoded one by one.
    A reader without the rows computes them again in the same way and gets the same bytes."""
    domain: str | None
    """Numeric domain that computed the rows; null without rows."""
    kv: tuple[Cid, ...] | None
    """The rows as leaves of `len(tokens)` rows per layer, or null."""

    KINDS: ClassVar[dict[str, Kind]] = {
        "tokens": Tokens(MAX_BLOCK_TOKENS - 1),
        "prefilled": Uint(MAX_BLOCK_TOKENS),
        "domain": Maybe(Text(128)),
        "kv": Maybe(Listing(Link("raw"), MAX_LEAVES_PER_BLOCK, least=1)),
    }


EMPTY_TAIL = Tail(tokens=(), prefilled=0, domain=None, kv=None)


@dataclass(frozen=True, slots=True)
class Conversation(Node):
    """Root -> segment -> block -> leaf: depth 3 at any length."""

    model: Cid
    block_size: int
    length: int
    """Tokens: full blocks and tail."""
    segments: tuple[Cid, ...]
    tail: Tail
    parent: Cid | None
    """The root this one was forked from."""
    fork_at: int | None
    """Token position of the fork."""
    approx: str | None
    """Why the bytes are not exact, or null."""
    title: str
    created: str
    """RFC 3339 time in UTC, or empty."""
    bytes: int
    """Payload of all leaves, full blocks and tail."""

    TYPE: ClassVar = "cyberkv/conversation"
    KINDS: ClassVar[dict[str, Kind]] = {
        "model": Link("dag-cbor"),
        "block_size": Uint(MAX_BLOCK_TOKENS),
        "length": Uint(),
        "segments": Listing(Link("dag-cbor"), MAX_SEGMENTS),
        "tail": Nested(Tail),
        "parent": Maybe(Link("dag-cbor")),
        "fork_at": Maybe(Uint()),
        "approx": Maybe(Text(256)),
        "title": Text(MAX_TITLE_BYTES),
        "created": Text(32),
        "bytes": Uint(),
    }
