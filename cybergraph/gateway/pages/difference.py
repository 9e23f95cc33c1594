"""The page that compares two conversations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from ...cid import Cid
from ...errors import MalformedCid
from ...identity import Difference, diff
from ...limits import MAX_SEGMENT_LINKS
from ...nodes import Block, Conversation
from .model import token_bytes
from .place import block_url
from .reader import CANNOT_READ, Reader, count_blocks
from .render import page
from .sharing import common_blocks
from .sources import Sources
from .words import Passage

MOST_TOKENS: Final = 4096
"""Tokens compared one by one, behind the blocks that are the same."""
MOST_BLOCKS: Final = 256
"""Blocks of each side that are read to compare tokens."""
AROUND_TOKENS: Final = 48
"""Tokens shown before and after the place where two conversations part."""


class Side(NamedTuple):
    """One of the two."""

    letter: str
    cid: Cid
    root: Conversation


@dataclass(frozen=True)
class Parting:
    """Where two conversations part."""

    blocks: int
    """Leading blocks in common."""
    tokens: int
    """Leading tokens in common, as far as they were compared."""
    open: bool
    """The comparison ended before they parted."""
    equal: bool
    before: Passage
    after: tuple[Passage, Passage]
    urls: tuple[str, str]
    """Of the blocks in which they part; empty in the tail."""


def diff_page(sources: Sources, request: Request) -> Response:
    """Compare the conversations that the query names as `a` and `b`, by their receipts or roots; else ask for two."""
    texts = {letter: request.query_params.get(letter, "").strip().removeprefix("ipfs://")[:200] for letter in "ab"}
    troubles, sides = [], []
    for letter, text in texts.items():
        found = _side(sources.reader, letter, text) if text else None
        if isinstance(found, Side):
            sides.append(found)
        elif found is not None:
            troubles.append(found)
    if len(sides) < 2:
        known, _ = sources.known()
        status = 404 if troubles else 200
        return page(request, "diff.html", status=status, texts=texts, troubles=troubles, sides=(), known=known[:20])
    a, b = sides
    models = [sources.reader.model(side.root.model) for side in sides]
    differs: list[Difference] | None = []
    if a.root.model != b.root.model:
        differs = diff(models[0], models[1]) if models[0] and models[1] else None
    parting = _parting(sources, a, b)
    return page(
        request, "diff.html", texts=texts, troubles=troubles, sides=sides, parting=parting, differs=differs, known=(),
        shared_bytes=parting.blocks * a.root.block_size * token_bytes(models[0]) if models[0] else None,
    )  # fmt: skip


def _side(reader: Reader, letter: str, text: str) -> Side | str:
    """Find what was named, or say why it cannot be compared."""
    unreadable = f"{letter} is not the CID of a conversation that can be read here."
    try:
        cid = Cid.parse(text)
    except MalformedCid:
        return unreadable
    receipt = reader.receipt(cid)
    if receipt is not None:
        cid = receipt.root
    root = reader.conversation(cid)
    if root is not None:
        return Side(letter, cid, root)
    if receipt is not None:
        return (
            f"{letter} is a receipt whose signature holds; the conversation that it signs, {cid}, is not served here."
        )
    if reader.is_receipt(cid):
        return f"{letter} is a receipt whose signature does not hold: what it names is not looked at."
    if reader.sealed(cid) is not None:
        return f"{letter} is sealed: only who can open it can compare it, with `cyberkv diff` at home."
    return unreadable


def _parting(sources: Sources, a: Side, b: Side) -> Parting:
    reader = sources.reader
    blocks = common_blocks(reader, a.root, b.root)
    at = blocks * a.root.block_size
    ours, theirs = (list(islice(_tokens(reader, side.root, at), MOST_TOKENS)) for side in (a, b))
    same = next((i for i, (x, y) in enumerate(zip(ours, theirs, strict=False)) if x != y), min(len(ours), len(theirs)))
    parts = at + same
    ended = [parts == side.root.length for side in (a, b)]
    is_open = same == min(len(ours), len(theirs)) and not any(ended)
    before = list(_tokens_before(reader, a.root, at)) + ours[:same]
    return Parting(
        blocks, parts, open=is_open, equal=all(ended),
        before=sources.words.passage(a.root.model, before[-AROUND_TOKENS:]),
        after=(_after(sources, a, ours[same:]), _after(sources, b, theirs[same:])),
        urls=(_block_at(a, parts), _block_at(b, parts)),
    )  # fmt: skip


def _after(sources: Sources, side: Side, tokens: Sequence[int]) -> Passage:
    return sources.words.passage(side.root.model, tokens[:AROUND_TOKENS])


def _block_at(side: Side, position: int) -> str:
    index = position // side.root.block_size
    return block_url(side.cid, index) if index < count_blocks(side.root) else ""


def _tokens_before(reader: Reader, root: Conversation, at: int) -> Iterator[int]:
    """Give the tokens just before a block boundary."""
    needed = -(-AROUND_TOKENS // root.block_size)
    first = max(at // root.block_size - needed, 0)
    return islice(_tokens(reader, root, first * root.block_size), at - first * root.block_size)


def _tokens(reader: Reader, root: Conversation, at: int) -> Iterator[int]:
    """Give tokens from a block boundary on, until the end, the bound, or something that cannot be read."""
    first, blocks = at // root.block_size, count_blocks(root)
    for index in range(first, min(blocks, first + MOST_BLOCKS)):
        segment, link = divmod(index, MAX_SEGMENT_LINKS)
        try:
            yield from reader.node(Block, reader.blocks(root.segments[segment])[link]).tokens
        except (*CANNOT_READ, IndexError):  # a segment may be shorter than its root says
            return
    if first + MOST_BLOCKS >= blocks:
        yield from root.tail.tokens
