"""What the marks of a home say of a conversation, for the commands that need to know."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..cybergraph.chain import tokens as tokens_of
from .context import Session
from .identities import access_folder

if TYPE_CHECKING:
    from ..cybergraph.nodes import Conversation
    from ..cybergraph.policy import Span


def marked_spans(session: Session, root: "Conversation") -> "list[Span] | None":
    """Give the spans of a conversation, or None if nothing is said of it. Raises `Corrupt` for damaged marks."""
    return access_folder(session).marks().spans(tokens_of(session.store, root)) if _has_marks(session) else None


def carry_marks(session: Session, tokens: Callable[[], Sequence[int]], at: int) -> None:
    """Let the first `at` tokens of a conversation keep their visibility where they become one of their own."""
    if _has_marks(session):
        access_folder(session).change_marks(lambda marks: marks.cut(tokens(), at))


def _has_marks(session: Session) -> bool:
    return (session.home / "access").is_dir()  # else what reads keys need not be imported
