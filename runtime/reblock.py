"""Re-block: the same canonical rows cut into blocks of another size.

A canonical row does not depend on the block size, so the result has the CIDs that recording with the other size would
have given. Token windows, leaves and prefix keys are new; nothing is computed.
"""

from dataclasses import replace

from ..cybergraph.chain import build_root, load_root, walk
from ..cybergraph.cid import Cid
from ..cybergraph.index import UNKNOWN_DOMAIN, Index
from ..cybergraph.nodes import Conversation, Model, Tail
from ..cybergraph.prefix import prefix_keys
from ..cybergraph.store.base import Store
from .announce import announce
from .block_sizes import check_sizes
from .geometry import Geometry, layers_per_leaf
from .pool import Pool
from .sealing import Unsealed, name_blocks, store_blocks

BATCH_TOKENS = 4096
"""Tokens held in memory at once, rounded to whole blocks of both sizes."""


def reblocked(model: Model, block_size: int) -> Model:
    """The identity of a model with another block size; everything else that follows from it follows."""
    g = Geometry.from_model(model)
    per_leaf = layers_per_leaf(
        g.num_layers, g.num_kv_heads, g.head_dim, block_size=block_size, dtype=g.dtype, scheme=g.scheme
    )
    return replace(model, block_size=block_size, layers_per_leaf=per_leaf)


def reblock(store: Store, index: Index, root_cid: Cid, block_size: int) -> Cid:
    """Record a conversation again with blocks of `block_size` tokens and give the new root.

    One size must divide the other. Rows beyond the last full new block, and the old tail, become the new tail as
    tokens; its rows are computed again when it is resumed. Raises `Refused` for sizes that do not divide and for a
    tail that would fill a block, `BlockNotFound`, `DigestMismatch`.
    """
    root = load_root(store, root_cid)
    check_sizes(root_cid, root, block_size)
    old = Model.decode(store.get(root.model), verify=root.model)
    new = reblocked(old, block_size)
    model_cid = store.put_node(new)
    blocks, tokens = _convert(store, index, root, old, new, model_cid)
    rest = tuple(tokens[len(blocks) * block_size :])
    prefilled = len(rest) - len(root.tail.tokens) + root.tail.prefilled
    tail = Tail(tokens=rest, prefilled=prefilled, domain=None, kv=None)
    return build_root(
        store, model=model_cid, block_size=block_size, blocks=blocks, tail=tail, title=root.title, created=root.created,
        approx=root.approx, payload_bytes=len(blocks) * Geometry.from_model(new).block_bytes,
    )  # fmt: skip


def _convert(
    store: Store, index: Index, root: Conversation, old: Model, new: Model, model_cid: Cid
) -> tuple[list[Cid], list[int]]:
    """Move all rows that fill new blocks; return those blocks' CIDs and the conversation's tokens."""
    steps = list(walk(store, root))
    tokens = [token for step in steps for token in step.block.tokens]
    whole = len(tokens) // new.block_size * new.block_size
    keys = list(prefix_keys(model_cid, tokens[:whole], new.block_size))
    window = max(old.block_size, new.block_size)
    batch = max(window, BATCH_TOKENS // window * window)
    source, target = (Pool(Geometry.from_model(each), batch // each.block_size) for each in (old, new))
    shape = (-1, old.num_layers, 2, old.num_kv_heads, source.packing.width)
    blocks: list[Cid] = []
    for start in range(0, whole, batch):
        end = min(start + batch, whole)
        part = steps[start // old.block_size : -(-end // old.block_size)]
        views = [view for row in range(len(part)) for view in source.leaves(row)]
        store.get_into([leaf for step in part for leaf in step.block.kv], views)
        rows = source.rows[: len(part)].permute(0, 3, 1, 2, 4, 5).reshape(shape)[: end - start]
        count = (end - start) // new.block_size
        split = rows.reshape(count, new.block_size, *shape[1:]).permute(0, 2, 3, 1, 4, 5)
        target.rows[:count] = split.contiguous()
        first = len(blocks)
        unsealed = [
            Unsealed(i, tuple(tokens[(first + i) * new.block_size : (first + i + 1) * new.block_size]), keys[first + i])
            for i in range(count)
        ]
        domains = [index.domain_of(step.cid) for step in part]
        prev = blocks[-1] if blocks else None
        sealed = name_blocks(target, new, model_cid, prev, unsealed, UNKNOWN_DOMAIN)
        for i, entry in enumerate(sealed.entries):
            made_of = {*domains[i * new.block_size // old.block_size : -(-(i + 1) * new.block_size // old.block_size)]}
            sealed.entries[i] = entry._replace(domain=_domain_of(made_of))
        if root.approx and not first:
            announce(store, model_cid, new.block_size, sealed.cids, root.approx)
        store_blocks(store, None if root.approx else index, sealed)
        blocks += sealed.cids
    return blocks, [*tokens, *root.tail.tokens]


def _domain_of(domains: set[str | None]) -> str:
    """Give the domain of a block made of blocks of these: where they are not one, nobody computed such a block."""
    return (domains.pop() or UNKNOWN_DOMAIN) if len(domains) == 1 else UNKNOWN_DOMAIN
