"""`retrieve`: find passages of documents by what they are about."""

import click

from .context import Session, pass_session
from .options import TEXT
from .output import answer, remark, say
from .splicing import read_spans, search
from .text import preview

_PREVIEW_CHARS = 160


@click.command()
@click.argument("query", type=TEXT)
@click.option("-k", "most", default=3, show_default=True, type=click.IntRange(1, 1000), help="Passages to show.")
@pass_session
def retrieve(session: Session, query: str, *, most: int) -> None:
    """Find the passages of documents that are nearest to QUERY.

    Shown are document, span of tokens, score (the cosine, 1 is the same) and the beginning of the text. The words
    DOC:START:END place just that passage with `cyberkv splice`. Needs `pip install 'cyberkv[retrieval]'`.
    """
    if not query.strip():
        raise click.UsageError("an empty question finds nothing")
    session.require_home()
    found = search(session, query, most)
    texts = [read_spans(session, each.document, [(each.start, each.end)])[0] for each in found]
    rows = [
        {
            "document": each.document.name,
            "span": [each.start, each.end],
            "score": round(each.score, 6),
            "text": text,
            "root": each.document.root,
            "ref": f"{each.document.root}:{each.start}:{each.end}",
        }
        for each, text in zip(found, texts, strict=True)
    ]

    def show() -> None:
        for each, text in zip(found, texts, strict=True):
            say(f"{each.score:.3f}  {each.document.name}:{each.start}:{each.end}", bold=True)
            say(f"  {each.document.root}", dim=True)
            say(f"  {preview(text, _PREVIEW_CHARS)}")

    answer(session, {"query": query, "found": rows}, show)
    if not session.as_json:
        remark(session, "`cyberkv splice REF DOC:START:END --at N` places a passage")
