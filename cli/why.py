"""`why`: for each block of a text, whether it would be reused, and why not."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from ..cybergraph.cid import Cid
from ..cybergraph.errors import BlockNotFound
from ..cybergraph.index import UNKNOWN_DOMAIN, Index
from ..cybergraph.transfer.shape import check_leaf
from ..cybergraph.verdict import BlockVerdict, Rates, Tier, Verdict, find_here, find_refusals, plan
from .context import Session, pass_session
from .kubo import open_source
from .models import choose_model, need_codec
from .options import BYTES_S_PER_MBIT, POSITIVE, TEXT
from .output import answer, remark, say
from .prompts import first_turn, is_file, read_text
from .rates import read_rate
from .text import count, duration, preview, size

if TYPE_CHECKING:
    from ..cybergraph.nodes import Model
    from ..cybergraph.peers import Peer
    from ..runtime.models.tokenizer import TextCodec

_SUFFIX = re.compile(r"\w\.[a-z]\w{0,4}\Z", re.IGNORECASE)


@click.command()
@click.argument("text", type=TEXT, metavar="PROMPT|FILE")
@click.option("--model", metavar="REF", help="The model it would run on; needed where several are registered.")
@click.option("--system", type=TEXT, metavar="TEXT", help="System message, as `run --system` takes it.")
@click.option("--link", type=POSITIVE, metavar="MBIT", help="Weigh as if blocks came over a link of this speed.")
@click.option("--prefill-tok-s", type=POSITIVE, metavar="N", help="Weigh as if a prefill ran at this speed.")
@click.option("--budget", type=click.IntRange(min=0), metavar="BYTES", help="Load at most this much from the source.")
@click.option(
    "--from", "source", metavar="URL|FILE.car",
    help="Ask there, too, for blocks that came from elsewhere and whose rows are here no more.",
)  # fmt: skip
@pass_session
def why(
    session: Session,
    text: str,
    *,
    model: str | None,
    system: str | None,
    link: float | None,
    prefill_tok_s: float | None,
    budget: int | None,
    source: str | None,
) -> None:
    """Say for each block of a text whether it is reused, and why not.

    A PROMPT is taken as `run` takes it, through the chat template; the name of a FILE, or `-`, as `prefill`
    does. Blocks side by side with one verdict share a line; with --json each has its own entry. A miss names its
    reason: what is absent or damaged, or the field in which the model that recorded this text differs.

    Each block has one verdict. HIT: its rows are in this home. FAULT: they are at the source that --from names, and
    have to come from there. RECOMPUTE: it is computed, for the first time or again, because it is absent, damaged, not
    made of finite numbers, or slower to load than to compute. REFUSE: there is one, and it is not used: made under
    another identity, signed by nobody who is trusted, or given up by `evict`. ABSTAIN: --budget is spent before it. How
    fast blocks load is measured here, unless --link says it; how fast they compute is known from the last long prefill
    of this model, unless --prefill-tok-s says it. `run` loads the first few MiB in any case, to see how fast that goes,
    and computes where it gains by half.

    A source is asked only about blocks that came from elsewhere: to ask for a block is to name it.
    """
    record = choose_model(session, model, None)
    prefill_tok_s = prefill_tok_s or read_rate(session.home, record.cid)
    codec = need_codec(session.registry.text(record), record.name)
    tokens = _tokens(session, codec, text, system)
    with ExitStack() as stack:
        peer = stack.enter_context(open_source(source)) if source else None
        there = _There(session.index, peer)
        start_s = time.perf_counter()
        located = find_here(session.store, session.index, record.identity, tokens, there, _examine(record.identity))
        here_s = time.perf_counter() - start_s - there.asked_s
    here_bytes = sum(each.load_bytes for each in located.places if each.tier is Tier.L2)
    measured = {Tier.L2: here_bytes / here_s}
    if there.asked_s:
        measured[Tier.L3] = there.bytes / there.asked_s
    rates = {tier: link * BYTES_S_PER_MBIT if link else rate for tier, rate in measured.items() if link or rate}
    block_size = record.identity.block_size
    verdicts = plan(
        located, blocks=len(tokens) // block_size, block_size=block_size, asked=Tier.L2, budget_bytes=budget,
        rates=Rates(prefill_tok_s, rates),
        refusals=find_refusals(session.store, session.index, record.identity, tokens, located),
    )  # fmt: skip
    tail_tokens = len(tokens) - len(verdicts) * block_size
    missed = next((each for each in verdicts if each.verdict is not Verdict.HIT), None)
    data = {
        "model": record.cid,
        "tokens": len(tokens),
        "tail_tokens": tail_tokens,
        "hits": sum(each.verdict is Verdict.HIT for each in verdicts),
        "load_bytes_s": rates.get(Tier.L2),
        "prefill_tok_s": prefill_tok_s,
        "verdicts": [_describe(each) for each in verdicts],
        "reason": missed.reason if missed else None,
    }

    def show() -> None:
        for run in _runs(verdicts):
            color = "green" if run[0].verdict is Verdict.HIT else "yellow"
            line = f"{_range(run):>13} {run[0].position_start:>8}  {run[0].verdict:<9} {_tier(run[0]):<2}"
            say(f"{line} {_costs(run)}".rstrip(), fg=color)
        say(f"{data['hits']} of {count(len(verdicts), 'block')} hit, tail of {count(tail_tokens, 'token')}")
        for head, *_ in _runs(verdicts):
            if head.verdict is not Verdict.HIT:
                say(f"block {head.index}: {head.reason}")
                if head.cid:
                    say(f"  {head.cid}")

    answer(session, data, show)


def _examine(model: "Model") -> Callable[[int, Cid, bytes], None]:
    """Give what looks at the numbers of a leaf. Loads numpy only when something came from elsewhere."""

    def examine(group: int, leaf: Cid, data: bytes) -> None:
        from ..runtime.finite import require_finite
        from ..runtime.geometry import Geometry

        geometry = Geometry.from_model(model)
        check_leaf(leaf, geometry.leaf_bytes(group), len(data))
        require_finite(geometry, group, leaf, data)

    return examine


class _There:
    """A source that is asked for leaves, and what it gave."""

    def __init__(self, index: Index, peer: "Peer | None") -> None:
        self._index, self._peer = index, peer
        self.bytes = 0
        self.asked_s = 0.0

    def __call__(self, block: Cid, leaves: Sequence[Cid]) -> int | None:
        """Give the bytes of `leaves` of a block that came from elsewhere, if the source shows to have the first."""
        if self._peer is None or self._index.domain_of(block) != UNKNOWN_DOMAIN:
            return None
        start_s = time.perf_counter()
        try:
            [(_, data)] = self._peer.get_many(leaves[:1])
        except BlockNotFound:
            return None
        finally:
            self.asked_s += time.perf_counter() - start_s
        self.bytes += memoryview(data).nbytes
        return memoryview(data).nbytes * len(leaves)


def _runs(verdicts: Sequence[BlockVerdict]) -> Iterator[list[BlockVerdict]]:
    """Put blocks side by side together that have the same verdict by the same field."""
    for _, run in groupby(verdicts, key=lambda each: (each.verdict, each.difference and each.difference[0], each.tier)):
        yield list(run)


def _tier(each: BlockVerdict) -> str:
    return "" if each.tier is None else str(each.tier)


def _range(run: Sequence[BlockVerdict]) -> str:
    return str(run[0].index) if len(run) == 1 else f"{run[0].index}-{run[-1].index}"


def _costs(run: Sequence[BlockVerdict]) -> str:
    """Say both ways with what they take for a run of blocks, as far as it is known."""
    load_bytes, compute_tokens = sum(each.load_bytes for each in run), sum(each.compute_tokens for each in run)
    load_s = [each.load_s for each in run if each.load_s is not None]
    compute_s = [each.compute_s for each in run if each.compute_s is not None]
    load = f"load {size(load_bytes)}" if load_bytes else ""
    if load_s:
        load += f" {duration(sum(load_s))}"
    compute = f"compute {count(compute_tokens, 'token')}" if compute_tokens else ""
    if compute_s:
        compute = f"compute {duration(sum(compute_s))}"
    return f"{load:>24}  {compute}".rstrip()


def _tokens(session: Session, codec: "TextCodec", text: str, system: str | None) -> list[int]:
    if text == "-" or is_file(text):
        return codec.encode(read_text(text))
    if _reads_as_path(text):
        remark(session, f"no file {preview(text, 80)}: taken as a prompt")
    return codec.encode(codec.render(first_turn(text, system)), special=False)


def _reads_as_path(text: str) -> bool:
    """Say whether somebody may have meant a file: a prompt of one word is rare, a mistyped path is not.

    >>> [_reads_as_path(text) for text in ("stroy.txt", "my notes.txt", "~/old texts/a", "Is it a/b or c?", "Tell me.")]
    [True, True, True, False, False]
    """
    return len(text.split()) == 1 or re.match(r"~?\.{0,2}/", text) is not None or _SUFFIX.search(text) is not None


def _describe(each: BlockVerdict) -> dict[str, Any]:
    described: dict[str, Any] = {
        "index": each.index,
        "position_start": each.position_start,
        "verdict": each.verdict,
        "tier": _tier(each) or None,
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
