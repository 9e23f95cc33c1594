"""What a set of roots needs: a plain walk over the links, each block once, without recursion."""

from collections.abc import Iterable
from typing import Any, Final

from ..cid import Cid
from ..dagcbor import parse
from ..errors import BlockNotFound, Corrupt, DigestMismatch, MalformedNode, UnsupportedFormat
from ..index import Index
from ..nodes import (
    Block,
    Conversation,
    Grant,
    ModelCard,
    PinSet,
    Receipt,
    Ring,
    Sealed,
    Segment,
    decode_node,
    links,
)
from ..store.base import Store
from ..survey import NODE_PREFIX

_PARTS: Final = frozenset(kind.TYPE for kind in (Block, Segment, Conversation, Receipt, Sealed, Grant, PinSet, Ring))
_LOST: Final[dict[Any, Any]] = {"type": None}


def kept(store: Store, roots: Iterable[Cid]) -> set[Cid]:
    """List what has to stay: everything the roots need, and every node that is no part of a conversation.

    Such nodes are models, cards, and what another version of this program wrote, with what hangs below it. Memory: some
    hundred bytes a block. Raises as `reach`.
    """
    reached = reach(store, roots)
    ahead = [cid for cid in store.cids(NODE_PREFIX) if cid not in reached and not _is_part(store, cid)]
    while ahead:
        cid = ahead.pop()
        if cid in reached:
            continue
        reached.add(cid)
        try:
            ahead += _below(store, cid)
        except (BlockNotFound, Corrupt):
            continue  # nobody has asked for these, so they need not be whole
    return reached | _receipts(store, reached)


def _receipts(store: Store, reached: set[Cid]) -> set[Cid]:
    """List the receipts of what stays: they go with what they sign, and keep nothing by themselves."""
    found: set[Cid] = set()
    for cid in store.cids(NODE_PREFIX):
        if cid not in reached and (item := _item(store, cid)).get("type") == Receipt.TYPE:
            root = item.get("root")
            found.update([cid] if isinstance(root, Cid) and root in reached else [])
    return found


def reach(store: Store, roots: Iterable[Cid]) -> set[Cid]:
    """List everything that `roots` need, themselves included. Leaves are named without being looked at.

    A node that is not here or damaged hides what hangs below it, so nothing may be thrown away on the word of a walk
    that met one: raises `BlockNotFound`, `DigestMismatch`.
    """
    reached: set[Cid] = set()
    ahead = list(roots)
    while ahead:
        cid = ahead.pop()
        if cid not in reached:
            reached.add(cid)
            ahead += _below(store, cid)
    return reached


def fetched(index: Index) -> dict[Cid, list[str]]:
    """List the roots in use that were fetched, with where from, and neither published nor pinned here since.

    Whether they are there still is not asked.
    """
    mine = {*index.published(), *index.pins()}
    sources = index.sources()
    return {root: sources[root] for root in index.roots() if root in sources and root not in mine}


def _below(store: Store, cid: Cid) -> list[Cid]:
    """List what a block needs: all its links, but neither the parent of a fork nor what a card recommends."""
    if cid.codec == "raw":
        return []
    data = store.get(cid)
    try:
        node = decode_node(data)
    except (MalformedNode, UnsupportedFormat):
        return links(data)
    match node:
        case Conversation():
            return [node.model, *node.segments, *(node.tail.kv or ())]
        case Segment():
            return [node.model, *(link.to for link in node.links)]
        case Block():
            return [node.model, *node.kv]
        case ModelCard():
            return [node.model]
    return links(data)


def _is_part(store: Store, cid: Cid) -> bool:
    """Say whether a node is of a kind that only conversations need. A damaged one that nobody needs may go, too."""
    item = _item(store, cid)
    return item is _LOST or (item.get("type") in _PARTS and item.get("version") == 1)


def _item(store: Store, cid: Cid) -> dict[Any, Any]:
    """Read a node as a map; `_LOST` where it is absent or damaged, an empty one for anything else."""
    try:
        item: Any = parse(store.get(cid))
    except (BlockNotFound, DigestMismatch):
        return _LOST
    except Corrupt:
        return {}
    return item if isinstance(item, dict) else {}
