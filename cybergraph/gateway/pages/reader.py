"""Nodes for pages, out of whatever a content may show: foreign, perhaps wrong, perhaps not here."""

from collections.abc import Sequence
from typing import Final, TypeVar

from ...access.receipt import check_receipt
from ...chain import check_root
from ...cid import Cid
from ...dagcbor import not_canonical, parse
from ...errors import AccessDenied, Corrupt, CyberKVError, MalformedCid, MalformedNode, NotFound, Refused
from ...foreign import AnyCid, AnyValue
from ...limits import MAX_SEGMENT_LINKS
from ...nodes import TYPES, Conversation, Model, Node, Receipt, Sealed, decode_node
from ..content import Content
from .cache import Cache

CANNOT_READ: Final = (NotFound, Corrupt, Refused)
"""What reading a node raises when it is not here, not sound, or of a newer version."""

_MOST_LINKS: Final = 1 << 17
"""Links held of roots and of segments, each: some 10 MiB."""

N = TypeVar("N", bound=Node)


def why(error: CyberKVError) -> str:
    """Say in a few words why a node cannot be shown."""
    if isinstance(error, NotFound):
        return "not here"
    return "damaged or not what its place needs" if isinstance(error, Corrupt) else "of a newer version"


def as_node(cid: AnyCid, value: AnyValue) -> Node | None:
    """Give a node of this project that makes up the whole block `cid`, else None for anything else.

    Raises `Corrupt` or `UnsupportedFormat` for a block that claims one of our types and is not valid.
    """
    if not isinstance(cid, Cid) or cid.codec != "dag-cbor" or not isinstance(value, dict):
        return None
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in TYPES:
        return None
    node = TYPES[kind].from_item(value)
    if Cid.of(node.encode(), cid.codec, cid.hash_name) != cid:
        raise not_canonical()  # a map inside a block, or a block in another form, is none of ours
    return node


class Reader:
    """Reads through one content and remembers what pages ask for again and again."""

    def __init__(self, content: Content) -> None:
        self.content = content
        self._roots = Cache[Cid, Conversation | None](_MOST_LINKS)
        self._segments = Cache[Cid, tuple[Cid, ...]](_MOST_LINKS)
        self._models = Cache[Cid, Model](64)
        self._receipts = Cache[Cid, Receipt | None](_MOST_LINKS)

    def here(self, cid: AnyCid) -> bool:
        """Say whether a block may be shown and is here."""
        return self.size_bytes(cid) is not None

    def size_bytes(self, cid: AnyCid) -> int | None:
        """Give the length of a block, None where it is not here or lies in a file that was changed."""
        try:
            return self.content.size_bytes(cid)
        except Corrupt:
            return None

    def node(self, kind: type[N], cid: Cid) -> N:
        """Read one node. Raises one of `CANNOT_READ`."""
        return kind.decode(self.content.get(cid))

    def conversation(self, cid: AnyCid) -> Conversation | None:
        """Give a conversation's root whose counts agree; None for anything else."""
        if not isinstance(cid, Cid) or cid.codec != "dag-cbor" or not self.here(cid):
            return None
        try:
            return self._roots.get(
                cid, lambda: self._checked_root(cid), lambda root: 8 + len(root.segments if root else ())
            )
        except CANNOT_READ:
            return None

    def receipt(self, cid: AnyCid) -> Receipt | None:
        """Give a receipt whose signature is good; None for anything else."""
        if not isinstance(cid, Cid) or cid.codec != "dag-cbor" or not self.here(cid):
            return None
        try:
            return self._receipts.get(cid, lambda: self._checked_receipt(cid))
        except CANNOT_READ:
            return None

    def is_receipt(self, cid: AnyCid) -> bool:
        """Say whether a block is a receipt, whether its signature is good or not."""
        if not isinstance(cid, Cid) or cid.codec != "dag-cbor" or not self.here(cid):
            return False
        try:
            self.node(Receipt, cid)
        except CANNOT_READ:
            return False
        return True

    def sealed(self, cid: AnyCid) -> Sealed | None:
        """Give the root of a sealed conversation; None for anything else."""
        if not isinstance(cid, Cid) or cid.codec != "dag-cbor" or not self.here(cid):
            return None
        try:
            return self.node(Sealed, cid)
        except CANNOT_READ:
            return None

    def _checked_receipt(self, cid: Cid) -> Receipt | None:
        data = self.content.get(cid)
        try:
            node = decode_node(data)
            if not isinstance(node, Receipt):
                return None
            check_receipt(node)
        except (Corrupt, Refused, AccessDenied):
            return None
        return node

    def named(self, text: str) -> Conversation | None:
        """Give the conversation whose root a text names; None for anything else."""
        try:
            return self.conversation(Cid.parse(text))
        except MalformedCid:
            return None

    def _checked_root(self, cid: Cid) -> Conversation | None:
        data = self.content.get(cid)
        try:
            root = Conversation.decode(data)
            check_root(root)
        except (Corrupt, Refused):  # for good: these are the bytes that the CID names
            return None
        return root

    def blocks(self, segment: Cid) -> tuple[Cid, ...]:
        """List the blocks of a segment. Raises one of `CANNOT_READ`."""
        if not self.here(segment):
            self.content.get(segment)  # raises what is to be said
        return self._segments.get(segment, lambda: self._linked(segment), len)

    def _linked(self, segment: Cid) -> tuple[Cid, ...]:
        # Without the proof of canonical form, which takes longer than all else: many segments are read for one page,
        # and what they say is only shown.
        item = parse(self.content.get(segment))
        try:
            found = tuple(link["to"] for link in item["links"])
        except (TypeError, KeyError):
            found = ()
        if not found or len(found) > MAX_SEGMENT_LINKS or {*map(type, found)} != {Cid}:
            raise MalformedNode(f"{segment} is not a segment", field="links", cid=str(segment))
        return found

    def model(self, cid: Cid) -> Model | None:
        """Give a model's identity, or None where it cannot be read."""
        try:
            return self._models.get(cid, lambda: self.node(Model, cid)) if self.here(cid) else None
        except CANNOT_READ:
            return None

    def conversations(self, cids: Sequence[AnyCid]) -> list[tuple[Cid, Conversation]]:
        """Read those of `cids` that are conversations, in their order."""
        read = ((cid, self.conversation(cid)) for cid in cids)
        return [(cid, root) for cid, root in read if root is not None and isinstance(cid, Cid)]


def count_blocks(root: Conversation) -> int:
    """Count the full blocks of a conversation whose counts agree."""
    return (root.length - len(root.tail.tokens)) // root.block_size
