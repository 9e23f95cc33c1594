"""Conversations as chains of blocks: build a root, walk it, list what it needs. Pure functions over a store.

A conversation is a page table: the root links to segments, a segment to up to 256 blocks, a block to its
leaves. Everything here loops over pages and never recurses, so a conversation may be any length.

>>> from ..cid import Cid
>>> from ..nodes import EMPTY_TAIL, Block
>>> from ..store import MemoryStore
>>> store, model = MemoryStore(), Cid.of(b"model", "dag-cbor", "sha2-256")
>>> leaf = Cid.of(b"KV", "raw", "blake3")
>>> first = store.put_node(Block(model, None, (1, 2), (leaf,)))
>>> second = store.put_node(Block(model, first, (3, 4), (leaf,)))
>>> blocks = [first, second]
>>> root = build_root(store, model=model, block_size=2, blocks=blocks, tail=EMPTY_TAIL, payload_bytes=4)
>>> tokens(store, load_root(store, root))
[1, 2, 3, 4]
>>> missing(store, root) == [model, leaf]
True
"""

from .checking import check_root
from .comparing import Common, common_prefix
from .making import build_root, fork_root
from .needs import closure, missing, usable_blocks
from .reading import Step, block_cids, checked_step, load_root, misfit, tokens, walk
from .signing import read_receipt, receipts_among

__all__ = [
    "Common", "Step", "block_cids", "build_root", "check_root", "checked_step", "closure", "common_prefix", "fork_root",
    "load_root", "misfit", "missing", "read_receipt", "receipts_among", "tokens", "usable_blocks", "walk",
]  # fmt: skip
