"""What sealed pages hold: the nodes of a conversation as they are, and where each of its leaves lies sealed.

The first page is the manifest: root, model, the rows of the tail, and the other pages. Each of these holds blocks of
one segment. A reader who has opened them knows the conversation by the names it has at home, so that everything else
goes on as with a public one.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from ..cid import Cid
from ..limits import MAX_LEAVES_PER_BLOCK, MAX_NODE_BYTES, MAX_PINSET_LINKS, MAX_SEALED_PAGES, MAX_SEGMENT_LINKS
from ..nodes.base import Nested, Node, Record
from ..nodes.kinds import Blob, Bytes, CidBytes, Listing, Maybe, Uint

PAGE_CONTENT_BYTES: Final = 512 << 10
"""A page that reaches this size is closed; the blocks of a segment that are left begin another."""


@dataclass(frozen=True, slots=True)
class SealedLeaf(Record):
    """One leaf: the sealed bytes, and what they open to."""

    cid: Annotated[Cid, CidBytes("raw")]
    digest: Annotated[bytes, Bytes(32)]
    """SHA-256 of the padded plaintext."""

    SIZE_BYTES: ClassVar = 84


@dataclass(frozen=True, slots=True)
class Page(Node):
    """Consecutive blocks of one segment."""

    segment: Annotated[bytes | None, Maybe(Blob(MAX_NODE_BYTES))]
    """The segment's node, in its first page."""
    start: Annotated[int, Uint()]
    """Index of the first block here within the conversation."""
    prefix: Annotated[bytes | None, Maybe(Bytes(32))]
    """Prefix key of the block before, which the context of every leaf depends on."""
    blocks: Annotated[tuple[bytes, ...], Listing(Blob(MAX_NODE_BYTES), MAX_SEGMENT_LINKS, least=1)]
    leaves: Annotated[tuple[SealedLeaf, ...], Listing(Nested(SealedLeaf), MAX_PINSET_LINKS - 1, least=1)]
    """Block by block, lowest layers first."""

    TYPE: ClassVar = "cyberkv/page"


@dataclass(frozen=True, slots=True)
class PageEntry(Record):
    """Where a page lies."""

    cid: Annotated[Cid, CidBytes("raw")]
    segment: Annotated[int, Uint(MAX_SEALED_PAGES)]
    """Index of the segment whose blocks it holds."""


@dataclass(frozen=True, slots=True)
class Manifest(Node):
    """The first page."""

    root: Annotated[bytes, Blob(MAX_NODE_BYTES)]
    model: Annotated[bytes, Blob(MAX_NODE_BYTES)]
    leaf_bytes: Annotated[int, Uint(least=1)]
    """To this size every leaf is filled up with zeros before it is sealed."""
    tail: Annotated[tuple[SealedLeaf, ...], Listing(Nested(SealedLeaf), MAX_LEAVES_PER_BLOCK)]
    tail_prefix: Annotated[bytes | None, Maybe(Bytes(32))]
    """Prefix key of the last block."""
    pages: Annotated[tuple[PageEntry, ...], Listing(Nested(PageEntry), MAX_SEALED_PAGES)]

    TYPE: ClassVar = "cyberkv/manifest"
