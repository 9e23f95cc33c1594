"""How an edit becomes the newest root of a conversation, and what is let go of the earlier ones."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ..cybergraph.chain import load_root
from ..cybergraph.chain import tokens as tokens_of
from ..cybergraph.cid import Cid
from ..cybergraph.errors import BadReference, Corrupt, NotFound, Refused
from .edited import Edited
from .forget import leaving_nothing
from .identities import access_folder, leave_readers
from .marking import carry_marks
from .names import root_of
from .trust import carry_origin

if TYPE_CHECKING:
    from ..cybergraph.access.visibility import Marks
    from ..runtime.edits.receipt import Cut, EditReceipt


def commit(edited: Edited, new: Cid, name: str, cuts: "Sequence[Cut]", receipt: "EditReceipt", *, forget: bool) -> None:
    """Make an edited conversation the newest root of its name.

    The name moves last, when marks, spans and the receipt of the new root are kept: a kill before it leaves the old
    conversation, one after it the new. With `forget`, earlier roots of the name are let go. Raises `Refused` where the
    name has moved on since it was read, `NameNotFound` where it is gone.
    """
    from ..runtime.edits.folder import Edit

    require_still(edited)
    session, folder, created = edited.session, edited.folder, edited.session.now()
    tokens, ledger = list(edited.tokens), edited.ledger
    for cut in reversed(cuts):
        del tokens[cut.start : cut.end]
        ledger = ledger.without(cut)
    _carry_marks(edited, tokens, cuts, survives=receipt.mode == "fast")
    carry_origin(session, edited.cid, new)
    if ledger.spans:
        folder.change_spans(lambda book: book.with_ledger(tokens, ledger))
    folder.keep(Edit(None if forget else edited.cid, new, created, receipt))
    if not forget or edited.name is None:
        expected = None if edited.name is None else edited.cid
        if not session.index.advance(name, new, created, expected=expected):
            raise _moved_on(name, expected, root_of(session.index, name))
        return
    with leaving_nothing(session):
        roots = [head.root for head in session.index.log(name)]
        session.index.begin_anew(name, edited.cid, new, created)
    _forget_notes(edited, roots, [edited.tokens[cut.start : cut.end] for cut in cuts])


def let_go(branch: Edited) -> None:
    """Forget a branch, which was read as a name: the name, its log, and what is noted of its roots.

    What others hold of it stays theirs. Raises `Refused` where the name has moved on since, `NameNotFound`.
    """
    session, name = branch.session, branch.name or branch.ref
    require_still(branch)
    roots = [head.root for head in session.index.log(name)]
    leave_readers(session, name, branch.cid)  # first: another conversation may get the name
    with leaving_nothing(session):
        session.index.drop(name, head=branch.cid)
    _forget_notes(branch, roots, [])


def _forget_notes(edited: Edited, roots: "Iterable[Cid]", contents: "Iterable[Sequence[int]]") -> None:
    """Let go what is noted of roots that a name has let go, as far as nothing else holds them."""
    session, folder = edited.session, edited.folder

    def others() -> Iterator[list[int]]:
        for head in session.index.heads():
            with suppress(NotFound, Corrupt, BadReference):  # the last for a sealed root
                yield tokens_of(session.store, load_root(session.store, head.root))

    folder.change_spans(lambda book: book.forget(edited.tokens, others()))
    folder.forget(set(roots).difference(session.index.roots()), contents)


def require_still(edited: Edited) -> None:
    """Check that a name ends where the edit began: it would take away what another process recorded meanwhile."""
    if edited.name is not None and (got := edited.session.index.head(edited.name).root) != edited.cid:
        raise _moved_on(edited.name, edited.cid, got)


def _moved_on(name: str, expected: Cid | None, got: Cid | None) -> Refused:
    now = "it is gone" if got is None else f"it ends at {got}"
    before = "there was none" if expected is None else f"it ended at {expected}"
    return Refused(
        f"{name} has moved on meanwhile: {now}, and {before} before",
        hint="the same command again edits it as it is now", name=name, field="head", expected=str(expected or ""),
        got=str(got or ""),
    )  # fmt: skip


def _carry_marks(edited: Edited, tokens: list[int], cuts: "Sequence[Cut]", *, survives: bool) -> None:
    """Let what is left keep its visibility: marks hold for tokens, and those after a cut are others now.

    Where the influence of a cut `survives` in what came after it, and something in it is private, all of that is.
    """
    if cuts[0].end == len(edited.tokens):
        carry_marks(edited.session, lambda: edited.tokens, cuts[0].start)
        return
    if not (edited.session.home / "access").is_dir():
        return

    def change(before: "Marks") -> "Marks":
        marks, spans = before, before.spans(edited.tokens) or ()
        for span in spans:
            start, end = moved(span.start), moved(span.end)
            if span.end <= cuts[0].start or start >= end:
                continue
            if span.visibility == "private" or not before.private(tokens, start, end):
                marks = marks.mark(tokens, start, end, span.visibility)
        private = [span for span in spans if span.visibility == "private"]
        hidden = [moved(cut.start) for cut in cuts if any(s.start < cut.end and cut.start < s.end for s in private)]
        if survives and hidden and hidden[0] < len(tokens):
            marks = marks.mark(tokens, hidden[0], len(tokens), "private")
        return marks

    def moved(at: int) -> int:
        for cut in reversed(cuts):
            at = cut.moved(at)
        return at

    access_folder(edited.session).change_marks(change)
