"""`walk`: a conversation block by block."""

from typing import TYPE_CHECKING

import click

from ..cybergraph.chain import Step, load_root
from ..cybergraph.chain import walk as walk_chain
from ..cybergraph.refs import resolve_root
from .context import Session, pass_session
from .models import find_codec
from .options import REF
from .output import line, say
from .text import count, preview

if TYPE_CHECKING:
    from ..runtime.models.tokenizer import TextStream

PREVIEW_CHARS = 60


@click.command()
@click.argument("ref", type=REF)
@click.argument("form", required=False, type=click.Choice(["lines"]), metavar="")
@pass_session
def walk(session: Session, ref: str, form: str | None) -> None:  # noqa: ARG001
    """Walk a conversation block by block.

    The blocks come in the order of their next_block links, and each is checked against its place. With
    `--json` (or `--json lines`) there is one object a block. Text is shown where the model is registered.
    """
    root = load_root(session.store, resolve_root(ref, session.index, session.store))
    codec = find_codec(session, root.model)
    stream = codec.stream(special=True) if codec else None
    for step in walk_chain(session.store, root):
        text = "".join(map(stream.feed, step.block.tokens)) if stream else None
        if session.as_json:
            line(_describe(session, step, text))
        else:
            place = f"{step.index:>6} {step.position_start:>8}  "
            say(f"{place}{step.cid}  {preview(text or '', PREVIEW_CHARS)}")
    if root.tail.tokens and not session.as_json:
        _say_tail(root.length, root.tail.tokens, stream)


def _describe(session: Session, step: Step, text: str | None) -> dict[str, object]:
    sizes = (session.store.size_bytes(leaf) for leaf in step.block.kv)
    described: dict[str, object] = {
        "cid": step.cid,
        "index": step.index,
        "position_start": step.position_start,
        "tokens": list(step.block.tokens),
        "bytes": sum(size_bytes or 0 for size_bytes in sizes),
    }
    return described if text is None else {**described, "text": text}


def _say_tail(length: int, tokens: tuple[int, ...], stream: "TextStream | None") -> None:
    text = "".join(map(stream.feed, tokens)) + stream.finish() if stream else ""
    words = f"tail of {count(len(tokens), 'token')}, not sealed"
    say(f"{'':>6} {length - len(tokens):>8}  {words:<59}  {preview(text, PREVIEW_CHARS)}", dim=True)
