"""`fork`: a new root over blocks that exist."""

from itertools import islice

import click

from ..cybergraph.chain import block_cids, build_root, load_root
from ..cybergraph.cid import Cid
from ..cybergraph.index.marks import encode_name
from ..cybergraph.nodes import Block, Conversation, Model, Tail
from ..cybergraph.refs import resolve
from ..cybergraph.store.base import Store
from .context import Session, pass_session
from .names import name_of_head, slug, unique
from .options import REF
from .output import answer, facts


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
    session.open_to_write()
    root_cid = resolve(ref, session.index, session.store)
    root = load_root(session.store, root_cid)
    if at > root.length:
        raise click.BadParameter(f"{at} is beyond the conversation's {root.length} tokens", param_hint="--at")
    base = name_of_head(session.index, ref, root_cid) or slug(root.title)
    name = name or unique(session.index, f"{base}-fork")
    encode_name(name)  # before anything is written
    created = session.now()
    fork_cid, shared_blocks = fork_root(session.store, root_cid, root, at, title=name, created=created)
    session.index.set_head(name, fork_cid, created)
    data = {"root": fork_cid, "name": name, "tokens": at, "shared_blocks": shared_blocks, "new_blocks": 0}
    answer(session, data, lambda: facts(data.items()))


def fork_root(store: Store, root_cid: Cid, root: Conversation, at: int, *, title: str, created: str) -> tuple[Cid, int]:
    """Write the root of the first `at` tokens and give its CID and the number of blocks it shares."""
    shared = list(islice(block_cids(store, root), at // root.block_size + 1))
    full, rest = divmod(at, root.block_size)
    if full < len(shared):
        cut = Block.decode(store.get(shared[full])).tokens[:rest]
        prefilled = rest
    else:
        cut = root.tail.tokens[:rest]
        prefilled = min(rest, root.tail.prefilled)
    cid = build_root(
        store,
        model=root.model,
        block_size=root.block_size,
        blocks=shared[:full],
        tail=Tail(tokens=cut, prefilled=prefilled, domain=None, kv=None),
        payload_bytes=full * _block_bytes(store, root),
        title=title,
        created=created,
        parent=root_cid,
        fork_at=at,
        approx=root.approx,
    )
    return cid, full


def _block_bytes(store: Store, root: Conversation) -> int:
    from ..runtime.geometry import Geometry

    return Geometry.from_model(Model.decode(store.get(root.model))).block_bytes
