"""What the marks of a home say of a conversation, for the commands that need to know."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..cybergraph.chain import tokens as tokens_of
from ..cybergraph.policy import public_prefix
from .context import Session
from .identities import access_folder

if TYPE_CHECKING:
    from ..cybergraph.access.visibility import Marks
    from ..cybergraph.nodes import Conversation
    from ..cybergraph.policy import Span


def marked_spans(session: Session, root: "Conversation") -> "list[Span] | None":
    """Give the spans of a conversation, or None if nothing is said of it. Raises `Corrupt` for damaged marks."""
    return access_folder(session).marks().spans(tokens_of(session.store, root)) if _has_marks(session) else None


def carry_marks(session: Session, tokens: Callable[[], Sequence[int]], at: int) -> None:
    """Let the first `at` tokens of a conversation keep their visibility where they become one of their own."""
    if _has_marks(session):
        access_folder(session).change_marks(lambda marks: marks.cut(tokens(), at))


class Part(NamedTuple):
    """Where a stretch of one conversation stands in another."""

    at: int
    """Its place there."""
    source: Sequence[int]
    """All tokens of the conversation that it comes from."""
    start: int
    end: int
    brings_rows: bool = False
    """Whether K and V come along, which hold all that stands before in the source."""


def carry_parts(session: Session, tokens: Sequence[int], parts: Sequence[Part]) -> None:
    """Let the parts of a conversation that was put together keep the visibility they had where they come from.

    As soon as one of them comes from where something was marked, what nothing is said of is private, as everywhere.
    What was said to be private of just these tokens already stays so.
    """
    if not _has_marks(session):
        return

    def change(before: "Marks") -> "Marks":
        marks = before
        for part in parts:
            spans = before.spans(part.source) or ()
            public = public_prefix(spans) if part.brings_rows else len(part.source)
            for span in spans:
                start, end = max(span.start, part.start), min(span.end, part.end)
                first, last = part.at + start - part.start, part.at + end - part.start
                if start >= end:
                    continue
                if span.visibility == "private" or start >= public:
                    marks = marks.mark(tokens, first, last, "private")
                elif not before.private(tokens, first, last):
                    marks = marks.mark(tokens, first, last, "public")
        return marks

    access_folder(session).change_marks(change)


def _has_marks(session: Session) -> bool:
    return (session.home / "access").is_dir()  # else what reads keys need not be imported
