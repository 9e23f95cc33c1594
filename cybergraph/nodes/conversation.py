"""`cyberkv/conversation`: the root that names a whole conversation."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ..cid import Cid
from ..limits import MAX_BLOCK_TOKENS, MAX_LEAVES_PER_BLOCK, MAX_SEGMENTS, MAX_TITLE_BYTES
from .base import Nested, Node, Record
from .kinds import Link, Links, Maybe, Text, Tokens, Uint


@dataclass(frozen=True, slots=True)
class Tail(Record):
    """The tokens after the last full block. Never indexed, never shared, dropped with its root."""

    tokens: Annotated[tuple[int, ...], Tokens(MAX_BLOCK_TOKENS - 1)]
    prefilled: Annotated[int, Uint(MAX_BLOCK_TOKENS)]
    """How many of the tail's rows, from its start, came from a canonical step; the rest were decoded one by
    one. A reader without the rows computes them again in the same way and gets the same bytes."""
    domain: Annotated[str | None, Maybe(Text(128))]
    """Where the rows were computed: numeric domain, thread count and a digest of rows decoded one by one; null without
    rows."""
    kv: Annotated[tuple[Cid, ...] | None, Maybe(Links("raw", MAX_LEAVES_PER_BLOCK, least=1))]
    """The rows as leaves of `len(tokens)` rows per layer, or null."""


EMPTY_TAIL = Tail(tokens=(), prefilled=0, domain=None, kv=None)


@dataclass(frozen=True, slots=True)
class Conversation(Node):
    """Root -> segment -> block -> leaf: depth 3 at any length."""

    model: Annotated[Cid, Link("dag-cbor")]
    block_size: Annotated[int, Uint(MAX_BLOCK_TOKENS, least=1)]
    length: Annotated[int, Uint()]
    """Tokens: full blocks and tail."""
    segments: Annotated[tuple[Cid, ...], Links("dag-cbor", MAX_SEGMENTS)]
    tail: Annotated[Tail, Nested(Tail)]
    parent: Annotated[Cid | None, Maybe(Link("dag-cbor"))]
    """The root this one was forked from."""
    fork_at: Annotated[int | None, Maybe(Uint())]
    """Token position of the fork."""
    approx: Annotated[str | None, Maybe(Text(256))]
    """Why the bytes are not exact, or null."""
    title: Annotated[str, Text(MAX_TITLE_BYTES)]
    created: Annotated[str, Text(32)]
    """RFC 3339 time in UTC, or empty."""
    bytes: Annotated[int, Uint()]
    """Payload of all leaves, full blocks and tail."""

    TYPE: ClassVar = "cyberkv/conversation"
