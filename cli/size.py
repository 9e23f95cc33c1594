"""`size`: how large a KV cache is, and whether to fetch or to compute it."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from ..cybergraph.verdict import choose
from .context import Session, pass_session
from .models import find_model
from .options import BYTES_S_PER_MBIT, POSITIVE
from .output import answer, facts, table
from .prompts import is_file
from .text import count, duration
from .text import size as size_words

if TYPE_CHECKING:
    from ..runtime.geometry import Geometry

LINKS_MBIT = (10.0, 100.0, 1_000.0, 10_000.0)


class Link(NamedTuple):
    """What a link of some speed means for one cache."""

    link_mbit: float
    fetch_s: float
    prefill_tok_s: float
    """Break-even: whoever computes fewer tokens a second fetches faster."""
    faster: str | None
    """`fetch` or `prefill`, where the speed of prefill was given."""


@click.command()
@click.argument("model")
@click.argument("tokens", type=click.IntRange(min=0))
@click.option(
    "--link",
    "links_mbit",
    multiple=True,
    type=POSITIVE,
    metavar="MBIT",
    help="Speed of a link; may be repeated.",
)
@click.option("--prefill-tok-s", type=POSITIVE, metavar="N", help="Speed of your prefill, to say which is faster.")
@pass_session
def size(
    session: Session, model: str, tokens: int, *, links_mbit: tuple[float, ...], prefill_tok_s: float | None
) -> None:
    """Say how large a KV cache is and when fetching it pays.

    MODEL is a registered model, the CID of one, or a folder with a config.json, which needs no weights. Sizes
    are exact for the payload; the nodes that hold it together are not counted.
    """
    geometry = _geometry(session, model)
    total = geometry.size(tokens)
    links = [_link(total.total_bytes, tokens, mbit, prefill_tok_s) for mbit in links_mbit or LINKS_MBIT]
    data = {
        "tokens": tokens,
        "bytes": total.total_bytes,
        "blocks": total.blocks,
        "leaves": total.leaves,
        "tail_tokens": total.tail_tokens,
        "tail_leaves": total.tail_leaves,
        "bytes_per_token": geometry.bytes_per_token,
        "block_size": geometry.block_size,
        "break_even": [link._asdict() for link in links],
    }

    def show() -> None:
        tail = f" and a tail of {total.tail_tokens}" if total.tail_tokens else ""
        blocks, leaves = count(total.blocks, "block"), count(total.leaves + total.tail_leaves, "leaf")
        facts(
            [
                ("tokens", f"{tokens:,}"),
                ("payload", f"{total.total_bytes:,} B, {size_words(total.total_bytes)}"),
                ("a token", f"{geometry.bytes_per_token:,} B, {size_words(geometry.bytes_per_token)}"),
                ("recorded as", f"{blocks} of {geometry.block_size} tokens{tail}, in {leaves}"),
            ]
        )
        click.echo()
        columns = (">link", ">fetch", ">fetching wins if prefill runs", *(["faster here"] if prefill_tok_s else []))
        table(columns, map(_row, links))

    answer(session, data, show)


def _link(total_bytes: int, tokens: int, link_mbit: float, prefill_tok_s: float | None) -> Link:
    fetch_s = total_bytes / (link_mbit * BYTES_S_PER_MBIT)
    break_even = tokens / fetch_s if fetch_s else 0.0
    faster = None
    if prefill_tok_s is not None:
        choice = choose(total_bytes, link_mbit * BYTES_S_PER_MBIT, tokens=tokens, prefill_tokens_s=prefill_tok_s)
        faster = "fetch" if choice.is_load else "prefill"
    return Link(link_mbit, fetch_s, break_even, faster)


def _row(link: Link) -> tuple[str, ...]:
    break_even = f"under {link.prefill_tok_s:,.1f} tok/s"
    verdict = [link.faster] if link.faster else []
    return f"{link.link_mbit:,g} Mbit/s", duration(link.fetch_s), break_even, *verdict


def _geometry(session: Session, model: str) -> "Geometry":
    from ..runtime.geometry import Geometry, layers_per_leaf

    if not is_file(Path(model) / "config.json"):
        return Geometry.from_model(find_model(session, model).identity)
    from ..runtime.models.config import DecoderConfig
    from ..runtime.models.files import read_json

    config = DecoderConfig.from_hf(read_json(Path(model) / "config.json"))
    shape = (config.num_layers, config.num_kv_heads, config.head_dim)
    group = layers_per_leaf(*shape, block_size=16, dtype="f32")
    return Geometry(*shape, block_size=16, layers_per_leaf=group, dtype="f32")
