"""The page of a block: its tokens, its leaves, and K and V as a heat map."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from ...cid import Cid
from ...nodes import Block
from .heat import leaf_layers
from .place import Place, block_url
from .reader import count_blocks
from .render import page
from .sharing import Sharer, sharers
from .sources import Sources

MOST_TOKENS: Final = 256
MOST_LEAVES: Final = 64
MOST_SHARERS: Final = 8


class Leaf(NamedTuple):
    """One row of the table of leaves."""

    layers: str
    cid: Cid
    size_bytes: int | None
    url: str


@dataclass(frozen=True)
class Standing:
    """Where a block stands in a conversation."""

    index: int
    position: int
    """Of its first token."""
    before: str
    """Address of the block before; empty at the beginning."""
    after: str
    """Address of the next block; empty at the end."""
    found: list[Sharer]
    """Other conversations that hold the block."""
    more: int
    """How many of those are left out."""


def block_page(sources: Sources, request: Request, cid: Cid, block: Block, place: Place) -> Response:
    """Show a block, and where it stands if the path says so."""
    reader = sources.reader
    model = reader.model(block.model)
    groups = leaf_layers(model) if model else ()
    leaves = [
        Leaf(_layers(groups, at), leaf, reader.size_bytes(leaf), place.below("kv", at))
        for at, leaf in enumerate(block.kv[:MOST_LEAVES])
    ]
    pieces = sources.words.pieces(block.model, block.tokens[:MOST_TOKENS])
    shown = list(zip(block.tokens[:MOST_TOKENS], pieces or [""] * MOST_TOKENS, strict=False))
    return page(
        request, "block.html", cid=cid, block=block, place=place, model=model, leaves=leaves,
        more_leaves=len(block.kv) - len(leaves), tokens=shown, more_tokens=len(block.tokens) - len(shown),
        passage=sources.words.passage(block.model, block.tokens),
        heat=sources.heats.of(cid, block, model), at=_standing(sources, block, place),
    )  # fmt: skip


def _layers(groups: tuple[tuple[int, int], ...], at: int) -> str:
    if at >= len(groups):
        return "not known"
    first, layers = groups[at]
    return f"{first} to {first + layers - 1}" if layers > 1 else f"{first}"


def _standing(sources: Sources, block: Block, place: Place) -> Standing | None:
    """Say where the block stands, if the path leads here from a conversation."""
    index, root = place.block, sources.reader.named(place.root)
    if index is None or root is None:
        return None
    known, _ = sources.known()
    found = [each for each in sharers(sources.reader, Cid.parse(place.root), root, known) if each.blocks > index]
    return Standing(
        index=index,
        position=index * len(block.tokens),
        before=block_url(place.root, index - 1) if index else "",
        after=block_url(place.root, index + 1) if index + 1 < count_blocks(root) else "",
        found=found[:MOST_SHARERS],
        more=max(len(found) - MOST_SHARERS, 0),
    )
