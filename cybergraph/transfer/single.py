"""One small block from whoever has it: what has to be read before it is known what to fetch."""

from collections.abc import Sequence
from typing import TypeVar

from ..cid import Cid
from ..errors import BlockNotFound, CyberKVError, MalformedNode
from ..nodes import Node, decode_node
from ..peers.base import Peer
from ..store.base import Store

N = TypeVar("N", bound=Node)


def bring_node(cid: Cid, peers: Sequence[Peer], kind: type[N]) -> N:
    """Bring a node of one type. Raises as `bring`, and `MalformedNode` for another type."""
    node = decode_node(bring(cid, peers))
    if not isinstance(node, kind):
        raise MalformedNode(f"{cid} is a {node.TYPE}, not a {kind.TYPE}", field="type", cid=str(cid))
    return node


def find_node(store: Store, cid: Cid, peers: Sequence[Peer]) -> Node:
    """Give a node that is here, else bring it. Raises as `bring`, and `Corrupt` for what is no node."""
    return decode_node(store.get(cid) if store.has(cid) else bring(cid, peers))


def bring(cid: Cid, peers: Sequence[Peer]) -> bytes:
    """Ask one peer after the other. Raises what the last one said that had more to say than that it lacks this."""
    failed: CyberKVError = BlockNotFound(f"nobody was asked for {cid}", cid=str(cid))
    for peer in peers:
        try:
            for found, data in peer.get_many([cid]):
                if found == cid:
                    return bytes(data)
        except CyberKVError as error:
            if isinstance(failed, BlockNotFound) or not isinstance(error, BlockNotFound):
                failed = error
    raise failed
