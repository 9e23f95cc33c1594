"""What follows from a block, found by its links: the entries of the index that an edit has to take out.

K and V of a block hold everything before it, so what continues a block that held the span holds it, too, in whatever
conversation. Blocks beside it do not. What the head of another name holds stays: that conversation was not edited.
Nothing is deleted: roots still have their blocks, and whoever computes such a block again gets it filed again.
"""

from collections.abc import Collection, Iterable
from contextlib import suppress

from ...cybergraph.chain import block_cids, load_root
from ...cybergraph.cid import Cid
from ...cybergraph.errors import BadReference, Corrupt, NotFound
from ...cybergraph.index import Index
from ...cybergraph.store.base import Store


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


def holders(
    store: Store, index: Index, model: Cid, blocks: Collection[Cid], *, name: str | None
) -> dict[str, set[Cid]]:  # fmt: skip
    """List those of `blocks` that the head of each name but `name` holds; names that hold none are left out.

    With a block a head holds all before it, so what is left of `blocks` continues nothing that went. What is
    sealed or cannot be read is not looked into.
    """
    asked, found = set(blocks), dict[str, set[Cid]]()
    for head in index.heads() if asked else ():
        if head.name != name:
            with suppress(NotFound, Corrupt, BadReference):  # the last for a sealed root
                root = load_root(store, head.root)
                if root.model == model and (held := asked.intersection(block_cids(store, root))):
                    found[head.name] = held
    return found


def give_up(
    store: Store, index: Index, model: Cid, dropped: Iterable[Cid], *, kept: Collection[Cid], name: str | None
) -> int:  # fmt: skip
    """Take what follows from the dropped blocks of `name` out of the index. Returns the number of entries that went.

    Those that are `kept`, or that the head of another name holds, stay.
    """
    found = derived(index, model, dropped, kept=kept)
    held = set[Cid]().union(*holders(store, index, model, found, name=name).values())
    gone = [cid for cid in found if cid not in held]
    return index.give_up(gone) if gone else 0
