"""Sealing: canonical rows become leaves, leaves become a block node, and only then can anything find them."""

from dataclasses import dataclass

from ..cybergraph.cid import Cid
from ..cybergraph.index import Index, IndexEntry
from ..cybergraph.nodes import Block, Model
from ..cybergraph.prefix import PrefixKey
from ..cybergraph.store.base import Store
from .pool import Pool


@dataclass(frozen=True, slots=True)
class Unsealed:
    """A full block of canonical rows that has no name yet."""

    row: int
    """Pool row."""
    tokens: tuple[int, ...]
    prefix: PrefixKey


def seal_blocks(
    store: Store, index: Index, pool: Pool, model: Model, model_cid: Cid, prev: Cid | None,
    blocks: list[Unsealed], domain: str,
) -> list[Cid]:  # fmt: skip
    """Hash consecutive blocks, store them durably, then index them. Returns their CIDs in order.

    Effects: one durable batch in the store and one in the index; a crash between the two costs a later lookup a miss.
    """
    items: list[tuple[Cid, bytes | memoryview]] = []
    entries: list[IndexEntry] = []
    cids: list[Cid] = []
    for block in blocks:
        leaves = [(Cid.of(leaf, "raw", model.leaf_hash), leaf) for leaf in pool.leaves(block.row)]
        node = Block(model=model_cid, prev=prev, tokens=block.tokens, kv=tuple(cid for cid, _ in leaves))
        cid = node.cid()
        items += [*leaves, (cid, node.encode())]
        entries.append(IndexEntry(prefix=block.prefix, block=cid, prev=prev, model=model_cid, domain=domain))
        cids.append(cid)
        prev = cid
    store.put_many(items, hashed=True)
    index.add_blocks(entries)
    return cids
