"""What stands behind addresses, in a few words: for whoever has to tell one from another."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from ..cybergraph.cid import Cid
from ..cybergraph.errors import CyberKVError
from ..cybergraph.nodes import Conversation, Node, Receipt, Sealed, decode_node
from .text import preview

if TYPE_CHECKING:
    from ..cybergraph.foreign import AnyCid

TITLE_CHARS: Final = 60


def titled(roots: "Iterable[AnyCid]", get: "Callable[[Cid], bytes]") -> "list[tuple[AnyCid, str]]":
    """Give each conversation once, with its title; a receipt stands for the conversation that it signs.

    What a receipt says is not checked. Whatever cannot be read is listed, and said to be so.
    """
    signed: dict[AnyCid, bool] = {}
    for cid in roots:
        node = _node(cid, get)
        root = node.root if isinstance(node, Receipt) else cid
        signed[root] = signed.get(root, False) or root != cid
    return [(cid, _words(_node(cid, get)) + (" (signed)" if by else "")) for cid, by in signed.items()]


def _node(cid: "AnyCid", get: "Callable[[Cid], bytes]") -> Node | None:
    if not isinstance(cid, Cid) or cid.codec != "dag-cbor":
        return None
    try:
        return decode_node(get(cid))
    except CyberKVError:  # of another kind, lost or damaged
        return None


def _words(node: Node | None) -> str:
    match node:
        case Conversation():
            return preview(node.title, TITLE_CHARS) or "untitled"
        case Sealed():
            return "sealed"
    return "not a conversation that can be read"
