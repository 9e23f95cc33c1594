"""Edits of a conversation: computed with the model, or taken away without one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ..cybergraph.chain import block_cids, fork_root, load_root
from ..cybergraph.cid import Cid
from ..cybergraph.errors import Refused
from .committing import commit, require_still
from .edited import Edited
from .interrupt import Stop, stoppable
from .names import root_of, slug, unique
from .progress import bar

if TYPE_CHECKING:
    from ..runtime.edits.receipt import Cut, EditReceipt, Mode
    from ..runtime.edits.spans import Span
    from ..runtime.live import Live


def compute(
    edited: Edited, cuts: "Sequence[Cut]", mode: "Mode", change: Stop, *, forget: bool
) -> "tuple[Cid, str, EditReceipt]":
    """Edit with the model and record the result. Ctrl-C leaves the conversation as it was, until `change` holds it."""
    from .recording import start

    session = edited.session
    name = edited.name or unique(session.index, f"{slug(edited.root.title)}-edit")
    recording = start(session, model=None, name=name, from_ref=str(edited.cid), base=name)  # the name may move on
    live = cast("Live", recording.live)  # nothing was selected
    new, receipt = edit(edited, live, name, cuts, mode, change, forget=forget)
    return new, name, receipt


def edit(
    edited: Edited, live: "Live", name: str, cuts: "Sequence[Cut]", mode: "Mode", change: Stop, *, forget: bool
) -> "tuple[Cid, EditReceipt]":
    """Edit a conversation that is in memory, where it is `edited`, and record it under `name`; as `compute`."""
    from ..runtime.checkpoint import checkpoint
    from ..runtime.edits.evict import evict

    session = edited.session
    require_still(edited)  # before anything is computed for nothing
    elsewhere = edited.elsewhere(cuts[0].start)
    with stoppable() as stop, bar(session, "evict") as draw:

        def progress(done: int, total: int) -> None:
            draw(done, total)
            stop.check()

        receipt = evict(live, cuts, mode, progress=progress, name=edited.name, elsewhere=elsewhere)
        parent, fork_at = _lineage(edited, cuts)
        new = checkpoint(live, title=name, created=session.now(), parent=parent, fork_at=fork_at)
        stop.check()
    change.hold()
    commit(edited, new, name, cuts, receipt, forget=forget)
    return new, receipt


def roll_back(edited: Edited, cuts: "Sequence[Cut]", change: Stop, *, forget: bool) -> "tuple[Cid, str, EditReceipt]":
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
    require_still(edited)
    block_bytes = Geometry.from_model(model).block_bytes
    forked, kept = fork_root(
        session.store, edited.cid, at, block_bytes=block_bytes, title=name, created=session.now()
    )  # fmt: skip
    parent, fork_at = _lineage(edited, cuts)
    new = session.store.put_node(replace(load_root(session.store, forked), parent=parent, fork_at=fork_at))
    blocks = list(block_cids(session.store, edited.root))
    elsewhere = edited.elsewhere(at)
    change.hold()
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


def drop_branch(edited: Edited, span: "Span", change: Stop) -> "tuple[Edited | None, EditReceipt]":
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
    change.hold()
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
