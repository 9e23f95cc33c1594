"""The page of a segment: its links, with the beginning of what each block says."""

from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from ...cid import Cid
from ...nodes import Block, NextBlock, Segment
from ...wording import preview
from .place import Place
from .reader import CANNOT_READ, Reader, why
from .render import page
from .sources import Sources, asked

ROWS: Final = 64
PREVIEW_CHARS: Final = 72
PREVIEW_TOKENS: Final = 24


class Row(NamedTuple):
    """One link."""

    block: int
    position: int
    cid: Cid
    url: str
    words: str
    """The beginning of the text, or of the token ids."""
    trouble: str


def segment_page(sources: Sources, request: Request, cid: Cid, segment: Segment, place: Place) -> Response:
    """Show a segment, some rows at a time."""
    most = len(segment.links) - 1
    start = asked(request, "from", most) // ROWS * ROWS
    rows = [
        _row(sources, segment, at, link, place) for at, link in enumerate(segment.links[start : start + ROWS], start)
    ]
    pages = [(at, min(at + ROWS, len(segment.links))) for at in range(0, len(segment.links), ROWS)]
    before, after = _neighbours(sources.reader, place)
    return page(
        request, "segment.html", cid=cid, segment=segment, place=place, rows=rows, pages=pages, start=start,
        before=before, after=after, text=sources.words.decoder(segment.model) is not None,
        first_from=segment.links[0].from_,
    )  # fmt: skip


def _row(sources: Sources, segment: Segment, at: int, link: NextBlock, place: Place) -> Row:
    words, trouble = "", ""
    try:
        tokens = sources.reader.node(Block, link.to).tokens[:PREVIEW_TOKENS]
    except CANNOT_READ as error:
        trouble = why(error)
    else:
        text = sources.words.passage(segment.model, tokens).text
        words = preview(" ".join(map(str, tokens)) if text is None else text, PREVIEW_CHARS)
    return Row(segment.start + at, link.position_start, link.to, place.below("links", at, "to"), words, trouble)


def _neighbours(reader: Reader, place: Place) -> tuple[str, str]:
    """Give the addresses of the segments before and after, where the path says which conversation this is of."""
    if place.segment is None or place.block is not None or (root := reader.named(place.root)) is None:
        return "", ""
    last = len(root.segments) - 1
    before = f"/ipfs/{place.root}/segments/{place.segment - 1}" if place.segment else ""
    return before, f"/ipfs/{place.root}/segments/{place.segment + 1}" if place.segment < last else ""
