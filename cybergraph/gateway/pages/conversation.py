"""The page of a conversation: what it is, its chain as a strip, its relatives, and its text a window at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from ...chain import check_root
from ...cid import Cid
from ...errors import MalformedNode
from ...limits import MAX_SEGMENT_LINKS
from ...nodes import Block, Conversation
from .family import family
from .place import Place, block_url
from .reader import CANNOT_READ, count_blocks, why
from .render import page
from .sharing import Run, cell_blocks, cells, runs, sharers
from .sources import Sources, asked
from .words import Passage

WINDOW_TOKENS: Final = 1024
MOST_RELATIVES: Final = 12
MOST_RUNS: Final = 12


class Cell(NamedTuple):
    """One cell of the strip."""

    run: Run
    url: str
    here: bool
    """The text below begins in it."""


@dataclass(frozen=True)
class Window:
    """The blocks whose text a page shows."""

    start: int
    end: int
    """Behind the last block."""
    each: int
    """Blocks of a whole window."""
    blocks: int
    """Of the whole chain."""
    passage: Passage
    trouble: str
    """Why the text ends early; empty if it does not."""

    @property
    def before(self) -> int | None:
        """First block of the window before."""
        return self.start - self.each if self.start else None

    @property
    def after(self) -> int | None:
        """First block of the next window."""
        return self.end if self.end < self.blocks else None

    @property
    def last(self) -> int:
        """First block of the last window."""
        return max(self.blocks - 1, 0) // self.each * self.each


def conversation_page(sources: Sources, request: Request, cid: Cid, root: Conversation, place: Place) -> Response:
    """Show a conversation."""
    try:
        check_root(root)
    except MalformedNode as error:
        return page(request, "broken.html", cid=cid, place=place, kind="conversation", reason=error.message)
    blocks = count_blocks(root)
    known, more_known = sources.known()
    found = sharers(sources.reader, cid, root, known)
    cut = runs(blocks, found)
    window = _window(sources, root, asked(request, "block", blocks - 1))
    each = cell_blocks(blocks)
    strip = [
        Cell(run, _cell_url(cid, run, each), here=run.start <= window.start < run.end and window.last > 0)
        for run in cells(cut)
    ]
    return page(
        request, "conversation.html", cid=cid, root=root, place=place, blocks=blocks, known=len(known),
        more_known=more_known, model=sources.reader.model(root.model), found=found[:MOST_RELATIVES],
        more_found=max(len(found) - MOST_RELATIVES, 0), runs=cut[:MOST_RUNS],
        more_runs=max(len(cut) - MOST_RUNS, 0), each=each, strip=strip, window=window,
        family=family(sources.reader, cid, root, known), parent_here=_is_here(sources, root.parent),
        receipts=sources.receipts(cid),
    )  # fmt: skip


def _is_here(sources: Sources, parent: Cid | None) -> bool:
    return parent is not None and sources.reader.here(parent)


def _cell_url(cid: Cid, run: Run, each: int) -> str:
    return block_url(cid, run.start) if each == 1 else f"?block={run.start}#text"


def _window(sources: Sources, root: Conversation, block: int) -> Window:
    """Read the window that holds a block. Windows do not cross segments, so that one segment is read."""
    blocks, each = count_blocks(root), window_blocks(root.block_size)
    start = block // each * each
    end = min(start + each, blocks)
    tokens, trouble = _tokens(sources, root, start, end) if blocks else ([], "")
    if end == blocks and not trouble:
        tokens += root.tail.tokens
    return Window(start, end, each, blocks, sources.words.passage(root.model, tokens), trouble)


def window_blocks(block_size: int) -> int:
    """Give the blocks of a window: a power of two of about `WINDOW_TOKENS` tokens, within a segment.

    >>> window_blocks(16), window_blocks(64), window_blocks(1024), window_blocks(1)
    (64, 16, 1, 256)
    """
    each = 1
    while each * 2 * block_size <= WINDOW_TOKENS and each < MAX_SEGMENT_LINKS:
        each *= 2
    return each


def _tokens(sources: Sources, root: Conversation, start: int, end: int) -> tuple[list[int], str]:
    tokens: list[int] = []
    segment = start // MAX_SEGMENT_LINKS
    try:
        linked = sources.reader.blocks(root.segments[segment])
    except CANNOT_READ as error:
        return tokens, f"Segment {segment} is {why(error)}."
    shown: Sequence[Cid] = linked[start % MAX_SEGMENT_LINKS :][: end - start]
    for at, cid in enumerate(shown, start):
        try:
            tokens += sources.reader.node(Block, cid).tokens
        except CANNOT_READ as error:
            return tokens, f"The text ends here: block {at:,} is {why(error)}."
    missing = end - start - len(shown)
    return tokens, f"Segment {segment} has fewer blocks than the root says." if missing else ""
