"""What follows from a block, found by its links: the entries of the index that an edit has to take out.

K and V of a block hold everything before it, so what continues a block that held the span holds it, too, in whatever
conversation. Blocks beside it do not. Nothing is deleted: roots still have their blocks, and whoever computes such a
block again gets it filed again.
"""

from collections.abc import Collection, Iterable

from ...cybergraph.cid import Cid
from ...cybergraph.index import Index


def descendants(index: Index, model: Cid, blocks: Iterable[Cid]) -> list[Cid]:
    """List `blocks` and all that continue them by `next_block`, each once; of no blocks, nothing."""
    found: dict[Cid, None] = {}
    ahead = list(blocks)[::-1]
    while ahead:
        cid = ahead.pop()
        if cid not in found:
            found[cid] = None
            ahead += index.next_block(cid, model)
    return list(found)


def derived(index: Index, model: Cid, blocks: Iterable[Cid], *, kept: Collection[Cid] = ()) -> list[Cid]:
    """List the indexed blocks among the descendants, without those that are `kept`."""
    stays = set(kept)
    return [
        cid for cid in descendants(index, model, blocks) if cid not in stays and index.domain_of(cid) is not None
    ]  # fmt: skip
