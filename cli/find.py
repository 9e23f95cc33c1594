"""`find`: which conversations hold a text, a block or a run of tokens."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from ..cybergraph.chain import block_cids, load_root
from ..cybergraph.chain import tokens as tokens_of
from ..cybergraph.cid import Cid
from ..cybergraph.errors import BadReference, Corrupt, NotFound
from ..cybergraph.nodes import Conversation
from ..cybergraph.refs import resolve
from .context import Session, pass_session
from .models import find_codec
from .options import TEXT
from .output import answer, remark, say

if TYPE_CHECKING:
    from ..runtime.models.tokenizer import TextCodec

Search = Callable[[Conversation], int | None]
"""Gives the token position of the first occurrence, or None."""


class Match(NamedTuple):
    """One conversation that holds what was looked for."""

    name: str
    root: Cid
    """The newest root of the name that holds it."""
    position: int
    """Token position of the first occurrence."""


class TokenList(click.ParamType[list[int]]):
    """Token ids with commas between them."""

    name = "1,2,3"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        """Read the list."""
        try:
            return [int(part) for part in str(value).split(",")]
        except ValueError:
            self.fail(f"{value!r} is not a list of token ids such as 1,2,3", param, ctx)


@click.command()
@click.argument("text", type=TEXT, required=False)
@click.option("--block", metavar="CID", help="A block, by CID or its unique beginning.")
@click.option("--tokens", type=TokenList(), help="A run of token ids.")
@pass_session
def find(session: Session, *, text: str | None, block: str | None, tokens: list[int] | None) -> None:
    """Find the conversations that hold a text, block or tokens.

    Looks through every root that a name has or has had, and gives the newest root of each name that holds it.
    Text is found in conversations whose model is registered here.
    """
    given = [value for value in (text, block, tokens) if value is not None]
    if len(given) != 1 or not given[0]:
        raise click.UsageError("give one of TEXT, --block and --tokens")
    if text is not None:
        search = _text_search(session, text)
    elif block is not None:
        search = _block_search(session, resolve(block, session.index, session.store))
    else:
        search = _token_search(session, tokens or [])
    matches = _search_all(session, search)

    def show() -> None:
        for match in matches:
            say(f"{match.name}  at token {match.position:,}", bold=True)
            say(f"  {match.root}")
        if not matches:
            say("no conversation holds it")

    answer(session, {"matches": [match._asdict() for match in matches]}, show)


def _search_all(session: Session, search: Search) -> list[Match]:
    matches: list[Match] = []
    known: dict[Cid, int | None] = {}
    for head in session.index.heads():
        for entry in reversed(session.index.log(head.name)):
            if entry.root not in known:
                known[entry.root] = _search_root(session, entry.root, search)
            if (position := known[entry.root]) is not None:
                matches.append(Match(head.name, entry.root, position))
                break
    return matches


def _search_root(session: Session, cid: Cid, search: Search) -> int | None:
    try:
        return search(load_root(session.store, cid))
    except (NotFound, Corrupt, BadReference) as error:  # the last where it is locked
        remark(session, f"skipped {cid}: {error.message}")
        return None


def _block_search(session: Session, block: Cid) -> Search:
    def search(root: Conversation) -> int | None:
        found = (i for i, cid in enumerate(block_cids(session.store, root)) if cid == block)
        index = next(found, None)
        return None if index is None else index * root.block_size

    return search


def _token_search(session: Session, wanted: Sequence[int]) -> Search:
    def search(root: Conversation) -> int | None:
        tokens = tokens_of(session.store, root)
        starts = range(len(tokens) - len(wanted) + 1)
        return next((at for at in starts if tokens[at : at + len(wanted)] == wanted), None)

    return search


def _text_search(session: Session, wanted: str) -> Search:
    codecs: dict[Cid, TextCodec | None] = {}

    def search(root: Conversation) -> int | None:
        if root.model not in codecs:
            codecs[root.model] = find_codec(session, root.model)
        if (codec := codecs[root.model]) is None:
            return None
        tokens = tokens_of(session.store, root)
        at = codec.decode(tokens).find(wanted)
        if at < 0:
            return None
        # The token that brings the first character of the match: texts of longer prefixes are longer.
        return bisect_left(range(1, len(tokens) + 1), at + 1, key=lambda n: len(codec.decode(tokens[:n])))

    return search
