"""`mark`: say which tokens of a conversation are private and which may become public."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from ..cybergraph.chain import block_cids, load_root
from ..cybergraph.chain import tokens as tokens_of
from ..cybergraph.cid import Cid
from ..cybergraph.errors import BadReference, Corrupt, NotFound, Refused
from ..cybergraph.policy import lay, public_prefix, withheld
from ..cybergraph.refs import resolve_root
from .context import Session, pass_session
from .identities import access_folder
from .models import find_codec
from .options import REF
from .output import answer, facts, remark, say
from .text import count, preview

if TYPE_CHECKING:
    from ..cybergraph.access.visibility import Marks
    from ..cybergraph.nodes import Conversation
    from ..cybergraph.policy import Span, Visibility

SHOWN_CHARS = 60
Range = tuple[int, int | None]


class TokenRange(click.ParamType[Range]):
    """Tokens from START up to and without END; either may be left out."""

    name = "start:end"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Range:
        """Read the two numbers."""
        start, colon, end = str(value).partition(":")
        if not colon or not all(part == "" or (part.isascii() and part.isdigit()) for part in (start, end)):
            self.fail(f"{value!r:.80} is no range of tokens such as 0:120", param, ctx)
        return int(start or 0), int(end) if end else None


RANGE = TokenRange()


@click.command()
@click.argument("ref", type=REF)
@click.option("--public", "public", type=RANGE, multiple=True, help="Tokens that may become public, as 0:120.")
@click.option(
    "--private",
    "private",
    type=RANGE,
    multiple=True,
    help="Tokens that stay private; they win over --public, of a later command too unless it names just these.",
)
@click.option("--clear", is_flag=True, help="Forget all that is said of this conversation, first.")
@pass_session
def mark(session: Session, ref: str, *, public: tuple[Range, ...], private: tuple[Range, ...], clear: bool) -> None:
    """Say which tokens of a conversation may become public.

    Without options, shows what is said of it so far. In a conversation with marks everything else is private, and
    `publish --public` publishes only what comes before the first private token: K and V of a token hold all tokens
    before it, so a public one after a private one would give the private one away. Marks stay in this home. They hold
    for every conversation that begins with the same tokens up to the end of the marked ones, such as a fork. They say
    nothing of `publish --to` and `--link`, where you choose who reads.
    """
    changes = bool(public or private or clear)
    if changes:
        session.open_to_write()
    cid = resolve_root(ref, session.index, session.store)
    root = load_root(session.store, cid)
    tokens = tokens_of(session.store, root)

    def change(marks: "Marks") -> "Marks":
        marks = marks.clear(tokens) if clear else marks
        opened[:] = [each for span in public for each in _opened(marks, tokens, ref, span, private)]
        kinds: list[tuple[Visibility, tuple[Range, ...]]] = [("public", public), ("private", private)]
        for visibility, ranges in kinds:
            for start, end in ranges:
                marks = marks.mark(tokens, start, len(tokens) if end is None else end, visibility)
        for at in beginnings:
            marks = marks.cut(tokens, at)
        return marks

    opened: list[Span] = []
    beginnings = _beginnings(session, tokens) if private else ()
    folder = access_folder(session)
    before = folder.marks()
    marks = folder.change_marks(change) if changes else before
    for span in opened:
        remark(session, f"{span} was marked private, and may become public now")
    spans = marks.spans(tokens)
    rest = _others(session, cid) if marks != before else ()
    if others := [name for name, theirs in rest if before.spans(theirs) != marks.spans(theirs)]:
        remark(session, f"this holds for what begins with the same tokens, too: {', '.join(others)}")
    if private:
        _say_published(session, root, spans or [])
    codec = find_codec(session, root.model)
    shown = lay((), len(tokens)) if spans is None else spans
    held = {each.start: each.reason for each in withheld(shown)}
    entries = [
        {
            "start": span.start, "end": span.end, "visibility": span.visibility,
            "withheld": held.get(span.start),
            "text": None if codec is None else codec.decode(tokens[span.start : span.end]),
        }
        for span in shown
    ]  # fmt: skip
    data = {
        "root": cid, "tokens": len(tokens), "marked": spans is not None, "spans": entries,
        "public_tokens": public_prefix(shown),
    }  # fmt: skip
    answer(session, data, lambda: _show(data, entries))


def _opened(marks: "Marks", tokens: list[int], ref: str, public: Range, private: Sequence[Range]) -> "list[Span]":
    """List the private span that `public` names and so makes public.

    Raises `Refused` where it only lies over one, unless `private` says again that this stays private.
    """
    start, end = public[0], len(tokens) if public[1] is None else public[1]
    found = []
    for span in marks.private(tokens, start, end):
        first, last = max(start, span.start), min(end, span.end)
        if any(low <= first and last <= (len(tokens) if high is None else high) for low, high in private):
            continue
        if (start, end) != span[:2]:
            raise Refused(
                f"{start}:{end} lies over {span}, which was marked private",
                hint=f"`cyberkv mark {shlex.quote(ref)} --public {span}` says that this may be public; "
                f"`cyberkv mark {shlex.quote(ref)} --clear` forgets all marks",
                start=span.start, end=span.end,
            )  # fmt: skip
        found.append(span)
    return found


def _show(data: dict[str, Any], entries: list[dict[str, Any]]) -> None:
    if not data["marked"]:
        say(f"nothing is said of {data['root']}: `publish --public` would publish all of it")
        return
    facts([("root", data["root"]), ("public", f"{data['public_tokens']:,} of {count(data['tokens'], 'token')}")])
    for each in entries:
        why = f" ({each['withheld']})" if each["withheld"] not in (None, each["visibility"]) else ""
        text = "" if each["text"] is None else f"  {preview(each['text'], SHOWN_CHARS)}"
        say(f"  {each['visibility']:<7}  {each['start']}:{each['end']}{why}{text}")


def _beginnings(session: Session, tokens: list[int]) -> list[int]:
    """List where other conversations end that are a beginning of this one: earlier roots of its name, and forks.

    What is private here inside of them is not public there, for all that they end within the span.
    """
    lengths = set()
    for cid in session.index.roots():
        with suppress(NotFound, Corrupt, BadReference):
            root = load_root(session.store, cid)
            if root.length < len(tokens) and tokens_of(session.store, root) == tokens[: root.length]:
                lengths.add(root.length)
    return sorted(lengths - {0})


def _others(session: Session, cid: Cid) -> Iterator[tuple[str, list[int]]]:
    """List the other conversations of this home with their tokens, as far as they can be read."""
    for head in session.index.heads():
        if head.root != cid:
            with suppress(NotFound, Corrupt, BadReference):  # the last for a sealed root
                root = load_root(session.store, resolve_root(str(head.root), session.index, session.store))
                yield head.name, tokens_of(session.store, root)


def _say_published(session: Session, root: "Conversation", spans: "list[Span]") -> None:
    """Say so where private tokens have been published already."""
    private = [span for span in spans if span.visibility == "private"]
    public = [
        start
        for start, cid in zip(range(0, root.length, root.block_size), block_cids(session.store, root), strict=False)
        if session.index.is_public(cid)
        and any(span.start < start + root.block_size and start < span.end for span in private)
    ]
    if public:
        remark(
            session,
            f"{count(len(public), 'block')} with private tokens were published already: no mark takes that back",
        )
