"""What two conversations have in common from their start on."""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from ..cid import Cid
from ..nodes import Block, Conversation, Tail
from ..store.base import Store
from .reading import block_cids


class Common(NamedTuple):
    """What two conversations share from their start on."""

    common_tokens: int
    common_blocks: int
    shared_bytes: int
    """Payload of the common blocks' leaves that are in the store."""


def common_prefix(store: Store, a: Conversation, b: Conversation) -> Common:
    """Compare two conversations from their start: tokens, blocks, bytes. Raises as `block_cids`."""
    blocks_a, blocks_b = list(block_cids(store, a)), list(block_cids(store, b))
    shared = _count_equal(iter(blocks_a), iter(blocks_b))
    sizes = (store.size_bytes(leaf) for cid in blocks_a[:shared] for leaf in Block.decode(store.get(cid)).kv)
    rest_a, rest_b = (
        _tokens_of(store, blocks_a[shared:], a.tail),
        _tokens_of(store, blocks_b[shared:], b.tail),
    )
    return Common(shared * a.block_size + _count_equal(rest_a, rest_b), shared, sum(size or 0 for size in sizes))


def _count_equal(a: Iterator[object], b: Iterator[object]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def _tokens_of(store: Store, blocks: Sequence[Cid], tail: Tail) -> Iterator[int]:
    for cid in blocks:
        yield from Block.decode(store.get(cid)).tokens
    yield from tail.tokens
