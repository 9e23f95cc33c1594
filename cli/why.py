"""`why`: for each block of a text, whether it would be reused, and why not."""

import time
from typing import TYPE_CHECKING, Any

import click

from ..cybergraph.verdict import BlockVerdict, Verdict, explain, find_hits, weigh
from .context import Session, pass_session
from .models import choose_model, need_codec
from .options import BYTES_S_PER_MBIT, POSITIVE, TEXT
from .output import answer, remark, say
from .prompts import first_turn, is_file, read_text
from .text import count, duration, preview, size

if TYPE_CHECKING:
    from ..runtime.models.tokenizer import TextCodec


@click.command()
@click.argument("text", type=TEXT, metavar="PROMPT|FILE")
@click.option("--model", metavar="REF", help="The model it would run on; needed where several are registered.")
@click.option("--system", type=TEXT, metavar="TEXT", help="System message, as `run --system` takes it.")
@click.option("--link", type=POSITIVE, metavar="MBIT", help="Weigh as if blocks came over a link of this speed.")
@click.option("--prefill-tok-s", type=POSITIVE, metavar="N", help="Speed of your prefill, to weigh loading against it.")
@pass_session
def why(
    session: Session,
    text: str,
    *,
    model: str | None,
    system: str | None,
    link: float | None,
    prefill_tok_s: float | None,
) -> None:
    """Say for each block of a text whether it is reused, and why not.

    A PROMPT is taken as `run` takes it, through the chat template; the name of a FILE, or `-`, as `prefill`
    does. A miss names its reason: what is absent or damaged, or the field in which the model that recorded
    this text differs. With --prefill-tok-s, blocks that load more slowly than they compute are RECOMPUTE; how fast
    they load is measured here, unless --link says it. (`run` itself uses whatever is here.)
    """
    record = choose_model(session, model, None)
    codec = need_codec(session.registry.text(record), record.name)
    tokens = _tokens(session, codec, text, system)
    start_s = time.perf_counter()
    hits = find_hits(session.store, session.index, record.identity, tokens)
    measured_bytes_s = hits.load_bytes / (time.perf_counter() - start_s)
    load_bytes_s = link * BYTES_S_PER_MBIT if link else measured_bytes_s or None  # nothing read, nothing measured
    block_size = record.identity.block_size
    verdicts = weigh(
        explain(session.store, session.index, record.identity, tokens, hits),
        block_size=block_size, load_bytes_s=load_bytes_s, prefill_tokens_s=prefill_tok_s,
    )  # fmt: skip
    tail_tokens = len(tokens) - len(verdicts) * block_size
    missed = next((each for each in verdicts if each.verdict is not Verdict.HIT), None)
    data = {
        "model": record.cid,
        "tokens": len(tokens),
        "tail_tokens": tail_tokens,
        "hits": sum(each.verdict is Verdict.HIT for each in verdicts),
        "load_bytes_s": load_bytes_s,
        "prefill_tok_s": prefill_tok_s,
        "verdicts": [_describe(each) for each in verdicts],
        "reason": missed.reason if missed else None,
    }

    def show() -> None:
        for each in verdicts:
            color = "green" if each.verdict is Verdict.HIT else "yellow"
            say(f"{each.index:>6} {each.position_start:>8}  {each.verdict:<9} {_costs(each)}", fg=color)
        say(f"{data['hits']} of {count(len(verdicts), 'block')} hit, tail of {count(tail_tokens, 'token')}")
        if missed:
            say(f"block {missed.index}: {missed.reason}")
            if missed.cid:
                say(f"  {missed.cid}")

    answer(session, data, show)


def _costs(each: BlockVerdict) -> str:
    """Say both ways with what they take, as far as it is known."""
    load = f"load {size(each.load_bytes)}" if each.load_bytes else ""
    if each.load_s is not None:
        load += f" {duration(each.load_s)}"
    compute = f"compute {duration(each.compute_s)}" if each.compute_s is not None else ""
    if each.compute_tokens and each.compute_s is None:
        compute = f"compute {count(each.compute_tokens, 'token')}"
    return f"{load:>24}  {compute}".rstrip()


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
        "load_s": each.load_s,
        "compute_s": each.compute_s,
    }
    if each.difference:
        field, ours, theirs = each.difference
        described |= {"field": field, "expected": ours, "got": theirs}
    return described
