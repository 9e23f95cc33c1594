"""`find`: which conversations hold a text, a block or a run of tokens."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import click

from ..cybergraph.chain import block_cids, load_root
from ..cybergraph.chain import tokens as tokens_of
from ..cybergraph.cid import Cid
from ..cybergraph.errors import BadReference, Corrupt, NotFound
from ..cybergraph.index import Head
from ..cybergraph.nodes import Conversation
from ..cybergraph.refs import resolve
from .context import Session, pass_session
from .dates import Span, date_options
from .models import find_codec, find_model
from .options import REF, TEXT
from .output import answer, say
from .progress import bar
from .text import preview

if TYPE_CHECKING:
    from ..cybergraph.store.base import Store
    from ..runtime.models.tokenizer import TextCodec

PREVIEW_CHARS = 72
BEFORE_TOKENS = 8
"""Shown before what was found."""
SHOWN_TOKENS = 32


class Match(NamedTuple):
    """One conversation that holds what was looked for."""

    name: str
    root: Cid
    """The newest root of the name that holds it."""
    position: int
    """Token position of the first occurrence."""
    created: str
    """When that root was recorded, RFC 3339 in UTC, or empty."""
    preview: str | None
    """The text around it; None where the model is not registered here."""


class Skipped(NamedTuple):
    """A conversation that was not looked into."""

    name: str
    root: Cid
    reason: str


class Chain:
    """What a search goes over: one root. Its tokens are read when something asks for them."""

    def __init__(self, store: "Store", root: Conversation) -> None:
        self.root = root
        self.blocks = list(block_cids(store, root))
        self._store = store

    @cached_property
    def tokens(self) -> list[int]:
        """Every token, tail included."""
        return tokens_of(self._store, self.root)

    def begins(self, later: "Chain") -> bool:
        """Say whether this is the beginning of a chain that was looked through."""
        at, tail = len(self.blocks) * self.root.block_size, self.root.tail.tokens
        return (
            self.root.model == later.root.model
            and later.blocks[: len(self.blocks)] == self.blocks
            and (not tail or tuple(later.tokens[at : at + len(tail)]) == tail)
        )


Search = Callable[[Chain], int | None]
"""Gives the token position of the first occurrence, or None."""


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
@date_options
@click.option("--model", type=REF, metavar="REF", help="Only conversations of this model.")
@click.pass_context
@pass_session
def find(
    session: Session,
    ctx: click.Context,
    *,
    text: str | None,
    block: str | None,
    tokens: list[int] | None,
    since: str | None,
    until: str | None,
    model: str | None,
) -> None:
    """Find the conversations that hold a text, block or tokens.

    Looks through every root that a name has or has had, and gives the newest root of each name that holds it.
    Text is found in conversations whose model is registered here. What is locked is named and not opened. Exit code 3
    where none of them holds it.
    """
    if text == "":
        raise click.UsageError("TEXT is empty")
    given = [value for value in (text, block, tokens) if value is not None]
    if len(given) != 1 or not given[0]:
        raise click.UsageError("give one of TEXT, --block and --tokens")
    codecs = _Codecs(session)
    if text is not None:
        search = _text_search(codecs, text)
    elif block is not None:
        search = _block_search(resolve(block, session.index, session.store))
    else:
        search = _token_search(tokens or [])
    only = None if model is None else find_model(session, model).cid
    looking = _Looking(session, search, codecs, Span(since, until), only)
    matches = list(looking.matches())

    def show() -> None:
        for match in matches:
            say(f"{match.name}  at token {match.position:,}  {match.created}".rstrip(), bold=True)
            say(f"  {match.root}")
            if match.preview:
                say(f"  {match.preview}", dim=True)
        if not matches:
            say("no conversation holds it")
        for each in looking.skipped:
            say(f"not looked into: {each.name}: {each.reason}", dim=True)

    data = {
        "matches": [match._asdict() for match in matches],
        "skipped": [each._asdict() for each in looking.skipped],
        "roots_searched": looking.searched,
    }
    answer(session, data, show)
    if not matches:
        ctx.exit(NotFound.exit_code)


class _Codecs:
    """The tokenizer of each model that is met, loaded once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[Cid, TextCodec | None] = {}

    def of(self, model: Cid) -> "TextCodec | None":
        if model not in self._known:
            self._known[model] = find_codec(self._session, model)
        return self._known[model]


class _Looking:
    """One search over a home. At any time it holds the tokens of two roots, however many there are."""

    def __init__(self, session: Session, search: Search, codecs: _Codecs, span: Span, model: Cid | None) -> None:
        self._session = session
        self._search = search
        self._codecs = codecs
        self._span = span
        self._model = model
        self._known: dict[Cid, tuple[int, str | None] | None] = {}
        self.skipped: list[Skipped] = []
        self.searched = 0

    def matches(self) -> Iterator[Match]:
        """Go over all names, each from its newest root to the first that holds it."""
        heads = self._session.index.heads()
        with bar(self._session, "find") as draw:
            for done, head in enumerate(heads, 1):
                if (match := self._newest(head.name)) is not None:
                    yield match
                draw(done, len(heads))

    def _newest(self, name: str) -> Match | None:
        later: Chain | None = None
        for entry in reversed(self._session.index.log(name)):
            if not self._span.holds(entry.created):
                continue
            if entry.root not in self._known:
                found, later = self._look(entry, later)
                self._known[entry.root] = found
            if (known := self._known[entry.root]) is not None:
                return Match(name, entry.root, known[0], entry.created, known[1])
        return None

    def _look(self, entry: Head, later: Chain | None) -> tuple[tuple[int, str | None] | None, Chain | None]:
        """Look through one root, unless it is the beginning of the `later` one, which does not hold it."""
        store = self._session.store
        try:
            root = load_root(store, entry.root)
            if self._model is not None and root.model != self._model:
                return None, later
            chain = Chain(store, root)
            if later is not None and chain.begins(later):
                return None, later
            position = self._search(chain)
            found = None if position is None else (position, self._preview(chain, position))
        except (NotFound, Corrupt, BadReference) as error:  # the last where it is locked
            self.skipped.append(Skipped(entry.name, entry.root, error.message))
            return None, later
        self.searched += 1
        return found, chain

    def _preview(self, chain: Chain, position: int) -> str | None:
        if (codec := self._codecs.of(chain.root.model)) is None:
            return None
        first = max(0, position - BEFORE_TOKENS)
        before = "…" if first else ""
        return before + preview(codec.decode(chain.tokens[first : first + SHOWN_TOKENS]), PREVIEW_CHARS)


def _block_search(block: Cid) -> Search:
    def search(chain: Chain) -> int | None:
        return chain.blocks.index(block) * chain.root.block_size if block in chain.blocks else None

    return search


def _token_search(wanted: Sequence[int]) -> Search:
    def search(chain: Chain) -> int | None:
        tokens = chain.tokens
        starts = range(len(tokens) - len(wanted) + 1)
        return next((at for at in starts if tokens[at : at + len(wanted)] == wanted), None)

    return search


def _text_search(codecs: _Codecs, wanted: str) -> Search:
    def search(chain: Chain) -> int | None:
        if (codec := codecs.of(chain.root.model)) is None:
            return None
        tokens = chain.tokens
        at = codec.decode(tokens).find(wanted)
        if at < 0:
            return None
        # The token that brings the first character of the match: texts of longer prefixes are longer.
        return bisect_left(range(1, len(tokens) + 1), at + 1, key=lambda n: len(codec.decode(tokens[:n])))

    return search
