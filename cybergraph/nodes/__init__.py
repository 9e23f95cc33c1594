"""Node types: frozen dataclasses that are views of canonical dag-cbor bytes.

`decode_node` reads a node of any type; `links` lists what a node links to, in the order of its fields.
"""

from typing import Any

from ..cid import Buffer, Cid
from ..dagcbor import Value, decode, parse
from ..errors import MalformedNode
from .base import Node, Record
from .block import Block
from .card import ModelCard, Signature
from .conversation import EMPTY_TAIL, Conversation, Tail
from .grant import UNSIGNED, Grant, PinSet, Ring
from .model import CANONICAL_RULE, Model, Rope
from .receipt import Receipt
from .sealed import Sealed
from .segment import NextBlock, Segment

TYPES: dict[str, type[Node]] = {
    cls.TYPE: cls for cls in (Model, ModelCard, Block, Segment, Conversation, Sealed, Grant, PinSet, Ring, Receipt)
}


def decode_node(data: Buffer, *, verify: Cid | None = None) -> Node:
    """Read a node of any known type. Raises as `Node.decode`; an unknown type is `MalformedNode`."""
    if verify is not None:
        verify.verify(data)
    item: Any = parse(data)
    kind = item.get("type") if type(item) is dict else None
    if kind not in TYPES:
        raise MalformedNode(f"not a CyberKV node: type is {kind!r:.60}", field="type", got=str(kind)[:60])
    return TYPES[kind].from_parsed(item, data)


def links(data: Buffer) -> list[Cid]:
    """List the CIDs that a dag-cbor block links to, in wire order; works for any dag-cbor."""
    found: list[Cid] = []
    _collect(decode(data), found)
    return found


def _collect(value: Value, found: list[Cid]) -> None:
    if isinstance(value, Cid):
        found.append(value)
    elif isinstance(value, list):
        for item in value:
            _collect(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _collect(item, found)


__all__ = [
    "CANONICAL_RULE", "EMPTY_TAIL", "TYPES", "UNSIGNED", "Block", "Conversation", "Grant", "Model", "ModelCard",
    "NextBlock", "Node", "PinSet", "Receipt", "Record", "Ring", "Rope", "Sealed", "Segment", "Signature", "Tail",
    "decode_node", "links",
]  # fmt: skip
