"""`fork`: a new root over blocks that exist."""

import click

from ..cybergraph.chain import fork_root, load_root, tokens
from ..cybergraph.index.marks import encode_name
from ..cybergraph.nodes import Model
from ..cybergraph.refs import resolve_root
from .changing import changing
from .context import Session, pass_session
from .marking import carry_marks
from .names import keep, name_of_head, say_moves, slug, unique
from .options import REF
from .output import answer, facts
from .text import count
from .trust import carry_origin


@click.command()
@click.argument("ref", type=REF)
@click.option("--at", required=True, type=click.IntRange(min=0), metavar="TOKEN", help="Tokens to keep.")
@click.option("--name", help="Name of the new conversation.")
@pass_session
def fork(session: Session, ref: str, *, at: int, name: str | None) -> None:
    """Start a new conversation from the first tokens of another.

    Every full block before TOKEN is shared, nothing is computed or copied, and no model is needed. The tokens
    after the last full block are kept as tokens; their rows are computed when the conversation goes on.
    """
    from ..runtime.geometry import Geometry

    with changing(session) as change:
        session.open_to_write()
        root_cid = resolve_root(ref, session.index, session.store)
        root = load_root(session.store, root_cid)
        base = name_of_head(session.index, ref, root_cid) or slug(root.title)
        name = name or unique(session.index, f"{base}-fork")
        encode_name(name)  # before anything is written
        block_bytes = Geometry.from_model(Model.decode(session.store.get(root.model))).block_bytes
        created = session.now()
        fork_cid, shared_blocks = fork_root(
            session.store, root_cid, at, block_bytes=block_bytes, title=name, created=created
        )
        change.hold()
        carry_marks(session, lambda: tokens(session.store, root), at)
        carry_origin(session, root_cid, fork_cid)
        name = keep(session, name, fork_cid, created, expected=say_moves(session, name, None))
        data = {"root": fork_cid, "name": name, "tokens": at, "shared_blocks": shared_blocks, "new_blocks": 0}

        def show() -> None:
            shared = f"{count(shared_blocks, 'block')} with {root_cid}"
            facts([("name", name), ("root", fork_cid), ("tokens", f"{at:,}"), ("shared", shared)])

        answer(session, data, show)
