"""A conversation that is edited: what its home says of its spans, and how an edit becomes its newest root."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, cast

from ..cybergraph.chain import block_cids, fork_root, load_root
from ..cybergraph.chain import tokens as tokens_of
from ..cybergraph.cid import Cid
from ..cybergraph.errors import BadReference, Corrupt, NotFound, Refused
from ..cybergraph.nodes import Conversation, Model
from ..cybergraph.refs import resolve_root
from .context import Session
from .forget import leaving_nothing
from .identities import access_folder, leave_readers
from .interrupt import stoppable
from .mark import RANGE
from .marking import carry_marks
from .names import name_of_head, root_of, slug, unique
from .progress import bar
from .trust import carry_origin

if TYPE_CHECKING:
    from ..cybergraph.access.visibility import Marks
    from ..runtime.edits.folder import EditsFolder
    from ..runtime.edits.receipt import Cut, EditReceipt, Mode
    from ..runtime.edits.spans import Ledger, Span
    from ..runtime.live import Live


class Named(NamedTuple):
    """What a person wrote to name a part of a conversation."""

    cut: "Cut"
    span: "Span | None"
    """None for a range of tokens."""


@dataclass(frozen=True, slots=True)
class Edited:
    """A conversation with its spans, as it was before the edit."""

    session: Session
    ref: str
    cid: Cid
    root: Conversation
    name: str | None
    """The name that ends at this root."""
    tokens: list[int]
    folder: "EditsFolder"
    ledger: "Ledger"

    @classmethod
    def read(cls, session: Session, ref: str) -> "Edited":
        """Read what REF names. Raises as `resolve_root` and `load_root`, and `Corrupt`."""
        from ..runtime.edits.folder import EditsFolder

        cid = resolve_root(ref, session.index, session.store)
        root = load_root(session.store, cid)
        tokens, folder = tokens_of(session.store, root), EditsFolder(session.home / "edits")
        name = name_of_head(session.index, ref, cid)
        return cls(session, ref, cid, root, name, tokens, folder, folder.ledger(tokens))

    @property
    def model(self) -> Model:
        """The identity of the model."""
        return Model.decode(self.session.store.get(self.root.model))

    def named(self, text: str) -> Named:
        """Read START:END, or the name or id of a span. Raises `NameNotFound`, and a usage error."""
        from ..runtime.edits.receipt import Cut

        if ":" in text:
            start, end = RANGE.convert(text, None, None)
            return Named(Cut(start, len(self.tokens) if end is None else end), None)
        span = self.ledger.find(text)
        return Named(span.cut, span)

    def elsewhere(self, start: int) -> tuple[str, ...]:
        """Name the copies of what stands at `start`, in its context, that an edit does not reach."""
        from ..runtime.edits.elsewhere import copies

        given = self._given() if (self.session.home / "access").is_dir() else []
        store, index, root = self.session.store, self.session.index, self.root
        at = start // root.block_size
        block = next(islice(block_cids(store, root), at, None), None)
        return copies(
            store, index, root.model, self.tokens[: start + 1], block=block, name=self.name, given=given
        )  # fmt: skip

    def _given(self) -> list[str]:
        """Name what was published for some, where, and for how many."""
        found = []
        for lineage in access_folder(self.session).lineages():
            if lineage.name in (self.name, str(self.cid)):
                roots = [*([] if lineage.last is None else [lineage.last.root]), *lineage.earlier]
                found += [f"given to {len(lineage.readers)} readers as {root}" for root in roots]
                found += [f"pinned on {pin.node} as {pin.name}" for pin in lineage.pins]
        return found


def compute(edited: Edited, cuts: "Sequence[Cut]", mode: "Mode", *, forget: bool) -> "tuple[Cid, str, EditReceipt]":
    """Edit with the model and record the result. Ctrl-C leaves the conversation as it was."""
    from .recording import start

    session = edited.session
    name = edited.name or unique(session.index, f"{slug(edited.root.title)}-edit")
    recording = start(session, model=None, name=name, from_ref=str(edited.cid), base=name)  # the name may move on
    live = cast("Live", recording.live)  # nothing was selected
    new, receipt = edit(edited, live, name, cuts, mode, forget=forget)
    return new, name, receipt


def edit(
    edited: Edited, live: "Live", name: str, cuts: "Sequence[Cut]", mode: "Mode", *, forget: bool
) -> "tuple[Cid, EditReceipt]":
    """Edit a conversation that is in memory, where it is `edited`, and record it under `name`; as `compute`."""
    from ..runtime.checkpoint import checkpoint
    from ..runtime.edits.evict import evict

    session = edited.session
    _require_still(edited)  # before anything is computed for nothing
    elsewhere = edited.elsewhere(cuts[0].start)
    with stoppable() as stop, bar(session, "evict") as draw:

        def progress(done: int, total: int) -> None:
            draw(done, total)
            stop.check()

        receipt = evict(live, cuts, mode, progress=progress, name=edited.name, elsewhere=elsewhere)
        parent, fork_at = _lineage(edited, cuts)
        new = checkpoint(live, title=name, created=session.now(), parent=parent, fork_at=fork_at)
        commit(edited, new, name, cuts, receipt, forget=forget)
    return new, receipt


def roll_back(edited: Edited, cuts: "Sequence[Cut]", *, forget: bool) -> "tuple[Cid, str, EditReceipt]":
    """Take the end away, without a model: the tokens of a cut block are kept, its rows are made when it goes on."""
    from ..runtime.edits.derived import give_up
    from ..runtime.edits.receipt import EditReceipt
    from ..runtime.edits.refusal import refusal_of_cuts, refusal_of_model
    from ..runtime.geometry import Geometry

    session, model = edited.session, edited.model
    if wrong := refusal_of_cuts(cuts, edited.root.length, "rollback") or refusal_of_model(model):
        raise wrong
    at = cuts[0].start
    name = edited.name or unique(session.index, f"{slug(edited.root.title)}-edit")
    _require_still(edited)
    block_bytes = Geometry.from_model(model).block_bytes
    forked, kept = fork_root(
        session.store, edited.cid, at, block_bytes=block_bytes, title=name, created=session.now()
    )  # fmt: skip
    parent, fork_at = _lineage(edited, cuts)
    new = session.store.put_node(replace(load_root(session.store, forked), parent=parent, fork_at=fork_at))
    blocks = list(block_cids(session.store, edited.root))
    elsewhere = edited.elsewhere(at)
    gone = give_up(
        session.store, session.index, edited.root.model, blocks[kept:], kept=blocks[:kept], name=edited.name
    )  # fmt: skip
    receipt = EditReceipt(
        mode="rollback", exact=edited.root.approx is None, recomputed_tokens=0,
        dropped_tokens=edited.root.length - at, dropped_blocks=len(blocks) - kept,
        invalidated=gone, elsewhere=elsewhere, domain=None,
    )  # fmt: skip
    commit(edited, new, name, cuts, receipt, forget=forget)
    return new, name, receipt


def drop_branch(edited: Edited, span: "Span") -> "tuple[Edited | None, EditReceipt]":
    """Take what only a branch holds out of the index, and give the branch; None where its name is gone.

    Raises `Refused`.
    """
    from ..runtime.edits.derived import give_up
    from ..runtime.edits.receipt import EditReceipt

    session, at = edited.session, span.start
    if root_of(session.index, span.branch) is None:  # forgotten, or a kill came before the span was closed
        return None, EditReceipt(
            mode="branch", exact=edited.root.approx is None, recomputed_tokens=0, dropped_tokens=0, dropped_blocks=0,
            invalidated=0, domain=None, elsewhere=(),
        )  # fmt: skip
    branch = Edited.read(session, span.branch)
    if branch.tokens[:at] != edited.tokens[:at]:
        raise Refused(
            f"{span.branch} stands for another conversation now, not for a branch of this one",
            hint=f"`cyberkv log {span.branch}` shows what it was", branch=span.branch,
        )  # fmt: skip
    dropped = list(block_cids(session.store, branch.root))[at // edited.root.block_size :]
    elsewhere = branch.elsewhere(at) if len(branch.tokens) > at else ()
    gone = give_up(
        session.store, session.index, edited.root.model, dropped, name=span.branch,
        kept=list(block_cids(session.store, edited.root)),
    )  # fmt: skip
    receipt = EditReceipt(
        mode="branch", exact=edited.root.approx is None, recomputed_tokens=0, dropped_tokens=len(branch.tokens) - at,
        dropped_blocks=len(dropped), invalidated=gone, domain=None, elsewhere=elsewhere,
    )  # fmt: skip
    return branch, receipt


def _lineage(edited: Edited, cuts: "Sequence[Cut]") -> tuple[Cid | None, int | None]:
    """Say what the edited conversation is a fork of: what it was, as far as that is still its beginning."""
    if edited.name is None:
        return edited.cid, cuts[0].start
    root = edited.root
    return root.parent, None if root.fork_at is None else min(root.fork_at, cuts[0].start)


def commit(edited: Edited, new: Cid, name: str, cuts: "Sequence[Cut]", receipt: "EditReceipt", *, forget: bool) -> None:
    """Make an edited conversation the newest root of its name.

    The name moves last, when marks, spans and the receipt of the new root are kept: a kill before it leaves the old
    conversation, one after it the new. With `forget`, earlier roots of the name are let go. Raises `Refused` where the
    name has moved on since it was read, `NameNotFound` where it is gone.
    """
    from ..runtime.edits.folder import Edit

    _require_still(edited)
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
    _require_still(branch)
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


def _require_still(edited: Edited) -> None:
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
