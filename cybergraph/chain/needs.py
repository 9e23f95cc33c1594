"""What conversations need, open or sealed, and what of it is not here."""

from collections.abc import Iterator, Sequence

from ..cid import Cid
from ..errors import BlockNotFound, DigestMismatch, MalformedNode
from ..nodes import Block, Conversation, Grant, Model, Node, PinSet, Receipt, Ring, Sealed, Segment, decode_node
from ..store.base import Store


def closure(store: Store, *roots: Cid) -> Iterator[Cid]:
    """List everything the conversations need, each CID once.

    Order: root, model, segments, blocks and leaves in chain order, tail leaves; of a sealed root the grant, the
    manifest and what its pin sets list; of a receipt what it signs. Parents are not followed.
    Raises `BlockNotFound` for a node that is not here, `MalformedNode` for a link to a node of another type;
    leaves and models are named without being looked at.
    """
    for cid, _ in _visit(store, roots, lenient=False):
        yield cid


def missing(store: Store, *roots: Cid) -> list[Cid]:
    """List what the conversations need and the store lacks, as far as it can be known now; nodes come first.

    What hangs below an absent node shows only after the node has been stored: ask again until nothing is
    missing. A damaged node counts as absent. Raises `MalformedNode`.
    """
    absent: list[Cid] = []
    unseen: list[Cid] = []
    for cid, here in _visit(store, roots, lenient=True):
        if here is None:
            unseen.append(cid)
        elif not here:
            absent.append(cid)
    return absent + store.missing(unseen)


def usable_blocks(store: Store, blocks: Sequence[Cid]) -> int:
    """Count the leading blocks of a chain that are here with every one of their leaves."""
    for count, cid in enumerate(blocks):
        try:
            block = Block.decode(store.get(cid))
        except (BlockNotFound, DigestMismatch):
            return count
        if store.missing(block.kv):
            return count
    return len(blocks)


def _visit(store: Store, roots: Sequence[Cid], *, lenient: bool) -> Iterator[tuple[Cid, bool | None]]:
    """Go over the closures, each CID once, saying whether it is here: None for what is named but not read."""
    seen: set[Cid] = set()
    pending: list[tuple[Cid, type[Node] | None]] = [(cid, Node) for cid in reversed(roots)]
    while pending:
        cid, kind = pending.pop()
        if cid in seen:
            continue
        seen.add(cid)
        if kind is None or kind is Model:
            yield cid, None
            continue
        try:
            node = _root(cid, store.get(cid)) if kind is Node else kind.decode(store.get(cid))
        except (BlockNotFound, DigestMismatch):
            if not lenient:
                raise
            yield cid, False
            continue
        yield cid, True
        pending.extend(reversed(_below(node)))


def _below(node: Node) -> list[tuple[Cid, type[Node] | None]]:
    match node:
        case Conversation():
            segments = [(cid, Segment) for cid in node.segments]
            return [(node.model, Model), *segments, *((cid, None) for cid in node.tail.kv or ())]
        case Segment():
            return [(link.to, Block) for link in node.links]
        case Block():
            return [(cid, None) for cid in node.kv]
        case Receipt():
            return [(node.root, Conversation)]
        case Sealed():
            return [(node.grant, Grant), (node.manifest, None), (node.pinset, PinSet)]
        case Grant():
            return [] if node.ring is None else [(node.ring, Ring)]
        case PinSet():
            return [(cid, None if cid.codec == "raw" else PinSet) for cid in node.links]
    return []


def _root(cid: Cid, data: bytes) -> Node:
    node = decode_node(data)
    if not isinstance(node, (Conversation, Receipt, Sealed)):
        raise MalformedNode(f"{cid} is a {type(node).TYPE}, not a conversation", field="type", cid=str(cid))
    return node
