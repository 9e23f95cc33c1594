"""`why`: for each block of a text, whether it would be reused, and why not."""

from typing import TYPE_CHECKING, Any

import click

from ..cybergraph.verdict import BlockVerdict, Verdict, explain
from .context import Session, pass_session
from .models import choose_model, need_codec
from .options import TEXT
from .output import answer, remark, say
from .prompts import first_turn, is_file, read_text
from .text import count, preview, size

if TYPE_CHECKING:
    from ..runtime.models.tokenizer import TextCodec


@click.command()
@click.argument("text", type=TEXT, metavar="PROMPT|FILE")
@click.option("--model", metavar="REF", help="The model it would run on; needed where several are registered.")
@click.option("--system", type=TEXT, metavar="TEXT", help="System message, as `run --system` takes it.")
@pass_session
def why(session: Session, text: str, *, model: str | None, system: str | None) -> None:
    """Say for each block of a text whether it is reused, and why not.

    A PROMPT is taken as `run` takes it, through the chat template; the name of a FILE, or `-`, as `prefill`
    does. A miss names its reason: what is absent or damaged, or the field in which the model that recorded
    this text differs.
    """
    record = choose_model(session, model, None)
    codec = need_codec(session.registry.text(record), record.name)
    tokens = _tokens(session, codec, text, system)
    verdicts = explain(session.store, session.index, record.identity, tokens)
    missed = next((each for each in verdicts if each.verdict is not Verdict.HIT), None)
    data = {
        "model": record.cid,
        "tokens": len(tokens),
        "tail_tokens": len(tokens) - len(verdicts) * record.identity.block_size,
        "hits": sum(each.verdict is Verdict.HIT for each in verdicts),
        "verdicts": [_describe(each) for each in verdicts],
        "reason": missed.reason if missed else None,
    }

    def show() -> None:
        for each in verdicts:
            color = "green" if each.verdict is Verdict.HIT else "yellow"
            cost = size(each.load_bytes) if each.load_bytes else count(each.compute_tokens, "token")
            say(f"{each.index:>6} {each.position_start:>8}  {each.verdict:<9} {cost:>10}", fg=color)
        tail = count(len(tokens) - len(verdicts) * record.identity.block_size, "token")
        say(f"{data['hits']} of {count(len(verdicts), 'block')} hit, tail of {tail}")
        if missed:
            say(f"block {missed.index}: {missed.reason}")
            if missed.cid:
                say(f"  {missed.cid}")

    answer(session, data, show)


def _tokens(session: Session, codec: "TextCodec", text: str, system: str | None) -> list[int]:
    if text == "-" or is_file(text):
        return codec.encode(read_text(text))
    if len(text.split()) == 1:  # a prompt of one word is rare, a mistyped path is not
        remark(session, f"no file {preview(text, 80)}: taken as a prompt")
    return codec.encode(codec.render(first_turn(text, system)), special=False)


def _describe(each: BlockVerdict) -> dict[str, Any]:
    described: dict[str, Any] = {
        "index": each.index,
        "position_start": each.position_start,
        "verdict": each.verdict,
        "reason": each.reason or None,
        "cid": each.cid,
        "load_bytes": each.load_bytes,
        "compute_tokens": each.compute_tokens,
    }
    if each.difference:
        field, ours, theirs = each.difference
        described |= {"field": field, "expected": ours, "got": theirs}
    return described
