"""`reblock`: the same rows in blocks of another size."""

import click

from ..cybergraph.chain import load_root, tokens
from ..cybergraph.index.marks import encode_name
from ..cybergraph.limits import MAX_BLOCK_TOKENS
from ..cybergraph.nodes import Model
from ..cybergraph.refs import resolve_root
from .changing import changing
from .context import Session, pass_session
from .marking import carry_marks
from .models import how_to_register, readable_records
from .names import keep, name_of_head, say_moves, slug, unique
from .options import REF
from .output import answer, facts, remark
from .progress import busy
from .text import count
from .trust import carry_origin


@click.command()
@click.argument("ref", type=REF)
@click.option(
    "--block-size",
    "block_size",
    required=True,
    type=click.IntRange(1, MAX_BLOCK_TOKENS),
    metavar="TOKENS",
    help="Tokens of a new block: a multiple or a divisor of the old size.",
)
@click.option("--name", help="Name of the new conversation.")
@pass_session
def reblock(session: Session, ref: str, *, block_size: int, name: str | None) -> None:
    """Record a conversation again in blocks of another size.

    The rows are those that are stored: nothing is computed, and the new blocks have the CIDs that recording with that
    size would have given. Conversations of two block sizes share no blocks. The new conversation belongs to the same
    model with the other block size.
    """
    from ..runtime.block_sizes import check_sizes

    with changing(session) as change:
        session.open_to_write()
        root_cid = resolve_root(ref, session.index, session.store)
        root = load_root(session.store, root_cid)
        check_sizes(root_cid, root, block_size)
        base = name_of_head(session.index, ref, root_cid) or slug(root.title)
        name = name or unique(session.index, f"{base}-{block_size}")
        encode_name(name)  # before anything is written
        from ..runtime.reblock import reblock as move  # loads torch, which takes seconds

        with busy(session, "moving rows"):
            moved_cid = move(session.store, session.index, root_cid, block_size)
        moved = load_root(session.store, moved_cid)
        change.hold()
        carry_marks(session, lambda: tokens(session.store, root), root.length)
        carry_origin(session, root_cid, moved_cid)
        name = keep(session, name, moved_cid, session.now(), expected=say_moves(session, name, None))
        blocks = (moved.length - len(moved.tail.tokens)) // block_size
        data = {
            "root": moved_cid, "name": name, "model": moved.model, "tokens": moved.length, "blocks": blocks,
            "block_size": block_size, "block_size_before": root.block_size, "tail_tokens": len(moved.tail.tokens),
            "tokens_computed": 0,
        }  # fmt: skip

        def show() -> None:
            cut = f"{count(blocks, 'block')} of {block_size} tokens, instead of {root.block_size}"
            tail = f" and a tail of {len(moved.tail.tokens)}" if moved.tail.tokens else ""
            facts([("name", name), ("root", moved_cid), ("tokens", f"{moved.length:,}"), ("cut into", cut + tail)])

        answer(session, data, show)
        if all(record.cid != moved.model for record in readable_records(session)):
            way = how_to_register(Model.decode(session.store.get(moved.model)))
            remark(session, f"to go on from it, register the model it belongs to: {way}")
