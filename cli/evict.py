"""`evict`: take tokens out of a conversation, with a receipt."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..cybergraph.errors import NotFound, Refused
from .changing import changing
from .committing import let_go
from .context import Session, pass_session
from .edited import Edited
from .editing import compute, drop_branch, roll_back
from .interrupt import Stop
from .models import find_codec, need_codec
from .options import REF, TEXT
from .output import answer, facts, remark, say
from .spans import list_spans, name_span, open_branch, spans_as_json
from .text import count

if TYPE_CHECKING:
    from ..cybergraph.cid import Cid
    from ..runtime.edits.gates import Verdict
    from ..runtime.edits.receipt import Cut, EditReceipt, Mode
    from ..runtime.edits.spans import Span

MODES: Final = ("exact", "rollback", "branch", "fast")


@click.command()
@click.argument("ref", type=REF)
@click.argument("span", metavar="[START:END|SPAN]", type=TEXT, required=False)
@click.option("--mode", type=click.Choice(MODES), default="exact", show_default=True, help="How to take it out.")
@click.option("--name", "new_name", metavar="NAME", type=TEXT, help="Only name START:END, to evict it later.")
@click.option("--open", "opened", metavar="NAME", type=TEXT, help="Only open a branch at the end of REF.")
@click.option(
    "--gate", metavar="FILE", type=click.Path(path_type=Path),
    help="Evict the spans, of all or just SPAN, that contain one of the texts in FILE, a text a line.",
)  # fmt: skip
@click.option("--list", "lists", is_flag=True, help="Only list the spans, and the receipts of earlier edits.")
@click.option("--forget", is_flag=True, help="Let the earlier roots of the name go: there is no way back.")
@pass_session
def evict(
    session: Session,
    ref: str,
    span: str | None,
    *,
    mode: "Mode",
    new_name: str | None,
    opened: str | None,
    gate: Path | None,
    lists: bool,
    forget: bool,
) -> None:
    """Take tokens out of a conversation, with a receipt.

    SPAN is a range of tokens, or the name or number of a span. `exact` computes again what came after it: bit for bit
    what a run gives that never saw the span. `rollback` takes the end away and computes nothing. `branch` drops what
    was opened with --open and never read by REF. `fast` computes nothing either, and is approximate: it frees rows and
    does NOT forget, for the influence of the span survives in the deeper layers of what came after it. Its result is
    marked approximate and is never found by other prompts.

    What follows from the span is not found by later prompts any more, but for blocks that the newest root of another
    name holds, which is said. The root before stays in `log REF`, and `run --from ROOT` goes on from it. Copies that
    were published or given are named and stay where they are.
    """
    actions = sum(each is not None for each in (new_name, opened, gate)) + lists
    if actions > 1 or (actions == 0 and span is None) or (new_name is not None and span is None):
        raise click.UsageError("give START:END or SPAN, and at most one of --name, --open, --gate, --list")
    if not lists:
        session.open_to_write()
    edited = Edited.read(session, ref)
    if lists:
        list_spans(edited)
        return
    with changing(session) as change:
        if opened is not None:
            open_branch(edited, opened, change)
        elif new_name is not None:
            name_span(edited, span or "", new_name, change)
        elif gate is not None:
            _gate(edited, span, gate, mode, change, forget=forget)
        else:
            _evict(edited, span or "", mode, change, forget=forget)


def _evict(edited: Edited, text: str, mode: "Mode", change: Stop, *, forget: bool) -> None:
    cut, span = edited.named(text)
    if span is not None and span.branch:
        if mode != "branch":
            raise Refused(
                f"{span.name} is a branch: {edited.ref} has never read it", hint="--mode branch drops it",
                span=span.name, branch=span.branch,
            )  # fmt: skip
        _drop_branch(edited, span, change, forget=forget)
        return
    _answer(edited, *_take_out(edited, [cut], mode, change, forget=forget), old=edited.cid, more={})


def _take_out(
    edited: Edited, cuts: "list[Cut]", mode: "Mode", change: Stop, *, forget: bool
) -> "tuple[Cid, str, EditReceipt]":
    from ..runtime.edits.refusal import refusal_of_cuts, refusal_of_model

    if wrong := refusal_of_cuts(cuts, edited.root.length, mode) or refusal_of_model(edited.model):
        raise wrong  # before a model is loaded
    if mode == "rollback":
        return roll_back(edited, cuts, change, forget=forget)
    return compute(edited, cuts, mode, change, forget=forget)


def _drop_branch(edited: Edited, span: "Span", change: Stop, *, forget: bool) -> None:
    from ..runtime.edits.folder import Edit

    session, ledger = edited.session, edited.ledger.closed(span.id)
    branch, receipt = drop_branch(edited, span, change)
    change.hold()  # where its name was gone, the span is closed all the same
    if forget and branch is not None:
        let_go(branch)
    edited.folder.keep(Edit(None if forget or branch is None else branch.cid, edited.cid, session.now(), receipt))
    edited.folder.change_spans(lambda book: book.with_ledger(edited.tokens, ledger))  # last: a kill leaves it to do
    name = edited.name or edited.root.title
    gone = forget or branch is None
    more = {"branch": span.branch, "branch_forgotten": gone}
    _answer(edited, edited.cid, name, receipt, old=None if branch is None else branch.cid, more=more)
    if not gone:
        remark(session, f"{span.branch} is still here under that name: --forget with this mode lets it go, too")


def _answer(
    edited: Edited, new: "Cid", name: str, receipt: "EditReceipt", *, old: "Cid | None", more: dict[str, Any]
) -> None:
    session = edited.session
    after = Edited.read(session, str(new))
    data = {
        "root": new, "old_root": old, "name": name, "tokens": after.root.length, "approx": after.root.approx,
        "receipt": receipt.as_json(), "spans": spans_as_json(after, None), **more,
    }  # fmt: skip

    def show() -> None:
        facts([
            ("name", name), ("root", new), ("before", old), ("mode", receipt.mode),
            ("gone", count(receipt.dropped_tokens, "token")),
            ("computed", count(receipt.recomputed_tokens, "token")),
            ("blocks", (f"{receipt.dropped_blocks:,} of the root before are not in the new one, "
                        f"{receipt.invalidated:,} are found by prompts no more")),
            ("result", receipt.note),
        ])  # fmt: skip
        for each in receipt.elsewhere:
            say(f"  beyond reach: {each}")

    answer(session, data, show)


def _gate(edited: Edited, text: str | None, file: Path, mode: "Mode", change: Stop, *, forget: bool) -> None:
    from ..runtime.edits.gates import PatternGate, digest_of

    gate = PatternGate.from_file(file)
    named = [span for span in edited.ledger.spans if not span.branch]
    parts = [(span.name, span.cut) for span in named] if text is None else [(text, edited.named(text).cut)]
    if not parts:
        raise NotFound("no span is named here", hint="`cyberkv evict REF START:END --name NAME` names one")
    codec = need_codec(find_codec(edited.session, edited.root.model), "of this conversation")
    judged: list[tuple[str, Cut, Verdict]] = []
    for name, cut in parts:
        tokens = edited.tokens[cut.start : cut.end]
        judged.append((name, cut, gate(tokens, codec.decode(tokens), digest_of(tokens))))
    edited.folder.keep_verdicts(verdict for _, _, verdict in judged)
    verdicts = [
        {"span": name, "start": cut.start, "end": cut.end, "gate": each.gate, "evict": each.evict,
         "reason": each.reason, "digest": each.digest}
        for name, cut, each in judged
    ]  # fmt: skip
    for each in verdicts:
        remark(edited.session, f"{each['span']}: {'evict' if each['evict'] else 'keep'}, {each['reason']}")
    cuts = _merged([cut for _, cut, verdict in judged if verdict.evict])
    if cuts:
        done = _take_out(edited, cuts, mode, change, forget=forget)
        _answer(edited, *done, old=edited.cid, more={"verdicts": verdicts})
        return
    data = {
        "root": edited.cid, "old_root": edited.cid, "name": edited.name, "tokens": edited.root.length,
        "approx": edited.root.approx, "receipt": None, "spans": spans_as_json(edited, None), "verdicts": verdicts,
    }  # fmt: skip
    answer(edited.session, data, lambda: say("nothing to evict"))


def _merged(cuts: "list[Cut]") -> "list[Cut]":
    """Put cuts in order, and those that touch together."""
    from ..runtime.edits.receipt import Cut

    merged: list[Cut] = []
    for cut in sorted(cuts):
        if merged and cut.start <= merged[-1].end:
            merged[-1] = Cut(merged[-1].start, max(merged[-1].end, cut.end))
        else:
            merged.append(cut)
    return merged
