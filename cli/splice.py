"""`splice`: documents placed into a conversation."""

from typing import TYPE_CHECKING

import click

from ..cybergraph.chain import load_root
from ..cybergraph.chain import tokens as tokens_of
from ..cybergraph.cid import Cid
from ..cybergraph.errors import OutOfRange
from ..cybergraph.index.marks import encode_name
from ..cybergraph.refs import resolve_root
from .changing import changing
from .context import Session, pass_session
from .interrupt import stoppable
from .marking import Part, carry_parts
from .names import keep, name_of_head, say_moves, slug, unique
from .options import REF, TEXT, FiniteRange
from .output import answer, facts, remark
from .progress import bar, busy
from .splicing import Bench, Source, find_source, model_of, open_bench, search, source_of
from .text import count
from .trust import carry_origin, require_usable

if TYPE_CHECKING:
    from ..runtime.splice.place import Text
    from ..runtime.splice.receipt import Receipt


@click.command()
@click.argument("ref", type=REF)
@click.argument("documents", metavar="[DOC]...", nargs=-1, type=REF)
@click.option("--at", type=click.IntRange(min=0), metavar="N", help="Token before which they stand; else the end.")
@click.option("--query", type=TEXT, metavar="TEXT", help="Place the passages nearest to TEXT, as in `retrieve`.")
@click.option("-k", "most", default=1, show_default=True, type=click.IntRange(1, 100), help="Passages for --query.")
@click.option("--reconcile", is_flag=True, help="Fit recorded rows in and compute only some again: approximate.")
@click.option("--share", default=0.2, show_default=True, type=FiniteRange(0, 1),
              help="Of the document tokens, how much --reconcile computes again.")  # fmt: skip
@click.option("--measure", is_flag=True, help="Compute everything beside --reconcile, and say how far off it is.")
@click.option("--name", help="Name of the new conversation.")
@pass_session
def splice(
    session: Session,
    ref: str,
    documents: tuple[str, ...],
    *,
    at: int | None,
    query: str | None,
    most: int,
    reconcile: bool,
    share: float,
    measure: bool,
    name: str | None,
) -> None:
    """Place documents into a conversation.

    A new conversation: the tokens of REF before N, the documents, the other tokens of REF. DOC is a document or
    conversation, or a span of its tokens as DOC:START:END. Exact by default: everything from N on is computed. With
    `--at 0` the first document begins the text, and its recorded blocks are used as they are. `--reconcile` uses the
    recorded rows of all documents and computes a share of them again; the result is approximate, says so for ever,
    and is never found by its tokens.
    """
    if bool(documents) == (query is not None):
        raise click.UsageError("give documents, or --query")
    if query is not None and not query.strip():
        raise click.UsageError("an empty question finds nothing")
    if measure and not reconcile:
        raise click.UsageError("--measure is for --reconcile: everything else is exact")
    if name is not None:
        encode_name(name)
    with changing(session) as change:
        session.open_to_write()
        root_cid = resolve_root(ref, session.index, session.store)
        root = load_root(session.store, root_cid)
        require_usable(session, root_cid)
        at = root.length if at is None else at
        if at > root.length:
            raise OutOfRange(
                f"cannot place at {at}, the conversation has {root.length} tokens", hint=f"give 0 to {root.length}",
                at=at, tokens=root.length,
            )  # fmt: skip
        named = [find_source(session, each) for each in documents]
        record = model_of(session, root)
        found = [] if query is None else search(session, query, most, model=record.cid)
        bench = open_bench(session, record)
        from ..runtime.splice.passages import merged
        from ..runtime.splice.place import Text, check_length

        if query is None:
            sources = [source_of(session, bench, *each) for each in named]
        else:
            sources = [source_of(session, bench, d.root, d, (start, end)) for d, start, end in merged(found)]
        held = tokens_of(session.store, root)
        text = Text(tuple(held[:at]), tuple(source.piece for source in sources), tuple(held[at:]))
        check_length(bench.engines.main, text)
        base = name_of_head(session.index, ref, root_cid) or slug(root.title)
        name = name or unique(session.index, f"{base}-splice")
        created = session.now()
        if reconcile:
            with busy(session, "reconciling"):
                new, receipt = _reconcile(bench, root_cid, text, sources, (share, measure), (name, created))
        else:
            new, receipt = _place(session, bench, root_cid, text, (name, created))
        placed = [Part(span.start, source.tokens, source.piece.start, source.end, reconcile)
                  for span, source in zip(text.spans, sources, strict=True)]  # fmt: skip
        before, after = Part(0, held, 0, at), Part(len(text.tokens) - len(held) + at, held, at, len(held))
        change.hold()
        carry_parts(session, text.tokens, [before, *placed, after])
        carry_origin(session, root_cid, new)
        name = keep(session, name, new, created, expected=say_moves(session, name, None))
        approx = load_root(session.store, new).approx
        data = {"root": new, "name": name, "tokens": len(text.tokens), "approx": approx, "receipt": receipt.describe()}
        answer(session, data, lambda: facts(_summary(name, new, approx, receipt)))
        if approx is not None:
            remark(session, "approximate: it answers as itself, and is never used for another text")


def _place(
    session: Session, bench: Bench, root_cid: Cid, text: "Text", title: tuple[str, str]
) -> "tuple[Cid, Receipt]":
    """Place documents exactly, and record the result."""
    from ..runtime.checkpoint import checkpoint
    from ..runtime.splice.documents import make_findable
    from ..runtime.splice.place import splice_exactly

    engine = bench.engines.main
    if not text.before and text.pieces[0].start == 0:
        make_findable(engine, text.pieces[0].root)
    with stoppable() as stop, bar(session, "prefill") as draw:

        def progress(done: int, total: int) -> None:
            draw(done, total)
            stop.check()

        live, receipt = splice_exactly(engine, text, progress, origin=root_cid)
        name, created = title
        at = len(text.before)
        root = checkpoint(live, title=name, created=created, parent=root_cid, fork_at=at)
        stop.check()
    return root, receipt


def _reconcile(
    bench: Bench, root_cid: Cid, text: "Text", sources: list[Source], how: tuple[float, bool], title: tuple[str, str]
) -> "tuple[Cid, Receipt]":
    """Fit documents in, and record the result."""
    from ..runtime.splice.documents import load_origin
    from ..runtime.splice.place import splice_approximately

    share, measured = how
    name, created = title
    return splice_approximately(
        bench.engines.main,
        load_origin(bench.engines, root_cid, len(text.before)),
        text,
        [source.rows(bench.engines) for source in sources],
        share=share,
        measured=measured,
        title=name,
        created=created,
    )


def _summary(name: str, root: Cid, approx: str | None, receipt: "Receipt") -> list[tuple[str, object]]:
    error = receipt.error
    rows: list[tuple[str, object]] = [
        ("name", name),
        ("root", root),
        ("mode", f"{receipt.mode.value}, {receipt.note}"),
        ("placed", f"{count(len(receipt.documents), 'document')} at token {receipt.at:,}"),
        ("tokens", f"{receipt.reused_tokens:,} reused, {receipt.recomputed_tokens:,} computed"),
        ("approx", approx),
    ]
    if error is not None:
        same = "the same" if error.same_choice else "another"
        rows.append(("scores", f"off by {error.logits_max_abs:.3g} at most, KL {error.kl:.3g}, {same} likeliest token"))
    return rows
