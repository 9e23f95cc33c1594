"""`cyberkv/segment`: one page of the page table, up to 256 `next_block` links.

Links stand here and not in the blocks, because a block cannot name a successor that does not exist yet, and
because a chain of links from block to block would be as deep as the conversation is long. A full segment
depends on nothing after it, so conversations that share a prefix share its segments.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ..cid import Cid
from ..limits import MAX_SEGMENT_LINKS
from .base import Nested, Node, Record
from .kinds import CidBytes, Link, Listing, Maybe, Uint


@dataclass(frozen=True, slots=True)
class NextBlock(Record):
    """The typed edge from one block to the next, for all layers."""

    from_: Annotated[Cid | None, Maybe(CidBytes())]
    """The block the edge leaves; null before the first block."""
    to: Annotated[Cid, Link("dag-cbor")]
    position_start: Annotated[int, Uint()]
    """Position of the first token of `to`."""

    CONSTANTS: ClassVar = {"type": "next_block"}


@dataclass(frozen=True, slots=True)
class Segment(Node):
    """Up to 256 consecutive edges of one conversation."""

    model: Annotated[Cid, Link("dag-cbor")]
    start: Annotated[int, Uint()]
    """Index of the first block of this page within the conversation."""
    links: Annotated[tuple[NextBlock, ...], Listing(Nested(NextBlock), MAX_SEGMENT_LINKS, least=1)]

    TYPE: ClassVar = "cyberkv/segment"
