"""The named spans of a conversation: naming one, opening one as a branch, listing them with what was done and said."""

from typing import TYPE_CHECKING, Any, Final

from ..cybergraph.chain import fork_root
from ..cybergraph.errors import BadReference, Refused
from .edited import Edited
from .interrupt import Stop
from .marking import carry_marks
from .models import find_codec
from .names import slug, unique
from .output import answer, facts, remark, say
from .text import preview
from .trust import carry_origin

if TYPE_CHECKING:
    from ..runtime.models.tokenizer import TextCodec

_TEXT_CHARS: Final = 60


def name_span(edited: Edited, text: str, name: str, change: Stop) -> None:
    """Name a range of tokens. Raises `BadReference`, `OutOfRange`, `LimitExceeded`."""
    cut, span = edited.named(text)
    if span is not None or cut.end > len(edited.tokens):
        raise BadReference(f"{text!r:.80} is no range of the {len(edited.tokens)} tokens", hint="START:END")
    ledger = edited.ledger.add(name, cut.start, cut.end)
    change.hold()
    edited.folder.change_spans(lambda book: book.with_ledger(edited.tokens, ledger))
    list_spans(Edited.read(edited.session, edited.ref))


def open_branch(edited: Edited, name: str, change: Stop) -> None:
    """Begin a conversation that has read all of this one, and that this one never reads. Raises as `name_span`."""
    from ..runtime.geometry import Geometry

    session, at = edited.session, edited.root.length
    if not at:
        raise BadReference("an empty conversation has no branches", hint="record something first")
    branch = unique(session.index, f"{edited.name or slug(edited.root.title)}-{slug(name)}")
    ledger = edited.ledger.add(name, at, at, branch=branch)
    created, block_bytes = session.now(), Geometry.from_model(edited.model).block_bytes
    cid, _ = fork_root(session.store, edited.cid, at, block_bytes=block_bytes, title=branch, created=created)
    change.hold()
    carry_marks(session, lambda: edited.tokens, at)
    carry_origin(session, edited.cid, cid)
    if not session.index.advance(branch, cid, created, expected=None):
        raise Refused(f"{branch} was taken meanwhile", hint="the same command again takes another name", name=branch)
    edited.folder.change_spans(lambda book: book.with_ledger(edited.tokens, ledger))
    data = {"root": edited.cid, "span": name, "branch": branch, "branch_root": cid, "at": at}
    answer(session, data, lambda: facts([("branch", branch), ("root", cid), ("at", f"{at:,}")]))
    remark(session, f"`--from {branch}` reads into the branch; {edited.ref} goes on without it")


def list_spans(edited: Edited) -> None:
    """List the spans of a conversation, and the receipts of the edits that its name has been through."""
    session = edited.session
    roots = [edited.cid] if edited.name is None else [head.root for head in session.index.log(edited.name)]
    edits: list[dict[str, Any]] = [
        {"root": edit.new, "old_root": edit.old, "created": edit.created, "receipt": edit.receipt.as_json()}
        for edit in edited.folder.edits(*dict.fromkeys(roots))
    ]
    spans = spans_as_json(edited, find_codec(session, edited.root.model))
    data = {"root": edited.cid, "name": edited.name, "tokens": len(edited.tokens), "spans": spans, "edits": edits}

    def show() -> None:
        for span in spans:
            where = (
                f"branch {span['branch']} at {span['start']}" if span["branch"] else f"{span['start']}:{span['end']}"
            )
            said = "".join(f"  ({each['gate']}: {each['reason']})" for each in span["verdicts"])
            say(f"{span['id']:>4}  {span['name']}  {where}  {preview(span['text'] or '', _TEXT_CHARS)}{said}")
        for edit in edits:
            did = edit["receipt"]
            say(f"{edit['created']}  {did['mode']}  {did['dropped_tokens']} tokens gone  {edit['root']}", dim=True)
            say(f"      {did['note']}", dim=True)
        if not spans and not edits:
            say("no span is named and nothing was evicted")

    answer(session, data, show)


def spans_as_json(edited: Edited, codec: "TextCodec | None") -> list[dict[str, Any]]:
    """Describe the spans of a conversation, with what gates said of their content."""
    verdicts = edited.folder.verdicts()
    return [
        {
            "id": span.id, "name": span.name, "start": span.start, "end": span.end, "branch": span.branch or None,
            "text": None if codec is None else codec.decode(edited.tokens[span.start : span.end]),
            "verdicts": [
                {"gate": each.gate, "evict": each.evict, "reason": each.reason, "digest": each.digest}
                for each in verdicts.on(edited.tokens[span.start : span.end])
            ],
        }
        for span in edited.ledger.spans
    ]  # fmt: skip
