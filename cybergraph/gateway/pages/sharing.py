"""Which conversations hold the same blocks.

A block names the one before it, so two conversations can only have their beginning in common, and each shares a number
of leading blocks with this one. Full segments depend on what is before them alone: to count, one segment of each is
read at most, at any length.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from typing import Final, NamedTuple

from ...cid import Cid
from ...limits import MAX_SEGMENT_LINKS
from ...nodes import Conversation
from .reader import CANNOT_READ, Reader, count_blocks

MOST_CELLS: Final = 128
"""Cells of a strip; a longer chain has several blocks in each."""


class Sharer(NamedTuple):
    """Another conversation that begins with the same blocks."""

    cid: Cid
    root: Conversation
    blocks: int
    is_parent: bool


class Run(NamedTuple):
    """Blocks in a row that the same conversations hold."""

    start: int
    end: int
    """Behind the last block."""
    others: int
    with_parent: bool

    @property
    def level(self) -> str:
        """`own`, `parent` or `other`: who shares, in one word."""
        return "parent" if self.with_parent else "other" if self.others else "own"


def common_blocks(reader: Reader, a: Conversation, b: Conversation) -> int:
    """Count the leading blocks that two conversations have in common, as far as their segments can be read."""
    if a.model != b.model or a.block_size != b.block_size:
        return 0
    pages = _count_equal(a.segments, b.segments)
    if pages == min(len(a.segments), len(b.segments)):
        return min(pages * MAX_SEGMENT_LINKS, count_blocks(a), count_blocks(b))
    try:
        part = _count_equal(reader.blocks(a.segments[pages]), reader.blocks(b.segments[pages]))
    except CANNOT_READ:
        part = 0
    return pages * MAX_SEGMENT_LINKS + part


def _count_equal(a: Sequence[Cid], b: Sequence[Cid]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def sharers(reader: Reader, cid: Cid, root: Conversation, others: Sequence[tuple[Cid, Conversation]]) -> list[Sharer]:
    """List which of `others` begin with blocks of this conversation, those with the most first."""
    found = [
        Sharer(other, theirs, common_blocks(reader, root, theirs), other == root.parent)
        for other, theirs in others
        if other != cid
    ]
    return sorted((each for each in found if each.blocks), key=lambda each: -each.blocks)


def runs(blocks: int, found: Sequence[Sharer]) -> list[Run]:
    """Cut a chain of `blocks` blocks where the number of conversations that hold them changes."""
    cuts = sorted({0, blocks, *(each.blocks for each in found)})
    return [
        Run(
            start,
            end,
            sum(each.blocks > start for each in found),
            any(each.is_parent and each.blocks > start for each in found),
        )
        for start, end in pairwise(cuts)
    ]


def cells(cut: Sequence[Run]) -> Iterator[Run]:
    """Give at most `MOST_CELLS` cells of equal length; each says what holds for all of its blocks."""
    blocks = cut[-1].end if cut else 0
    each = cell_blocks(blocks)
    at = 0
    for start in range(0, blocks, each):
        end = min(start + each, blocks)
        while cut[at].end < end:
            at += 1
        yield Run(start, end, cut[at].others, cut[at].with_parent)


def cell_blocks(blocks: int) -> int:
    """Give the blocks of one cell: a power of two, so that cells and segments do not cut one another.

    >>> cell_blocks(128), cell_blocks(129), cell_blocks(100_000)
    (1, 2, 1024)
    """
    each = 1
    while blocks > each * MOST_CELLS:
        each *= 2
    return each
