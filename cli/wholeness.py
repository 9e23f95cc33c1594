"""How much of each conversation is in this home: leaves that came from elsewhere may have made room."""

from functools import cache
from typing import Final

from ..cybergraph.cid import Cid
from ..cybergraph.errors import CyberKVError
from ..cybergraph.nodes import Block, Conversation, Segment, decode_node
from .context import Session

_ALL: Final = 1 << 62
"""Of what cannot be read, nothing is known to be here: see `fsck`."""


class Wholeness:
    """Counts blocks without rows. What was computed here never makes room, so a home that fetched nothing is whole."""

    def __init__(self, session: Session) -> None:
        self._store = session.store
        self._fetched = bool(session.index.sources())
        self._missing_of = cache(self._missing_in)
        """By segment: conversations share them."""

    def missing_blocks(self, root: str) -> int:
        """Count the blocks of a conversation of which a node or a leaf is not here."""
        if not self._fetched:
            return 0
        node = decode_node(self._store.get(Cid.parse(root)))
        if not isinstance(node, Conversation):
            return 0
        blocks = (node.length - len(node.tail.tokens)) // node.block_size
        return min(blocks, sum(self._missing_of(segment) for segment in node.segments))

    def _missing_in(self, segment: Cid) -> int:
        try:
            node = decode_node(self._store.get(segment))
        except CyberKVError:
            return _ALL
        return sum(self._lacks(link.to) for link in node.links) if isinstance(node, Segment) else _ALL

    def _lacks(self, block: Cid) -> bool:
        try:
            node = decode_node(self._store.get(block))
        except CyberKVError:
            return True
        return not isinstance(node, Block) or any(not self._store.has(leaf) for leaf in node.kv)
