"""One pass over every node of a store: what is there, what it hangs on, what cannot be read."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from .cid import Cid
from .errors import BlockNotFound, Corrupt, DigestMismatch, UnsupportedFormat
from .nodes import Block, Conversation, Node, PinSet, Sealed, Segment, decode_node
from .prefix import PrefixKey, prefix_key
from .store.base import Store

NODE_PREFIX = bytes.fromhex("0171")
"""First bytes of the CID of any dag-cbor block."""


@dataclass(slots=True)
class Survey:
    """The nodes of a store. Memory: some hundred bytes a node; tokens and leaves are not kept."""

    blocks: dict[Cid, tuple[Cid | None, Cid]] = field(default_factory=dict)
    """Block -> prev, model."""
    segments: dict[Cid, tuple[Cid, ...]] = field(default_factory=dict)
    """Segment -> its blocks."""
    conversations: dict[Cid, Conversation] = field(default_factory=dict)
    sealed: set[Cid] = field(default_factory=set)
    """Sealed roots."""
    incomplete: set[Cid] = field(default_factory=set)
    """Blocks with leaves that are not here."""
    leaves: set[Cid] = field(default_factory=set)
    """Every leaf that some block or tail links to, and what pin sets list."""
    unreadable: dict[Cid, Corrupt] = field(default_factory=dict)
    nodes: int = 0
    foreign: int = 0
    """Sound dag-cbor of types or versions this program does not know."""
    _keys: dict[Cid, PrefixKey | None] = field(default_factory=dict)

    @classmethod
    def of(cls, store: Store) -> "Survey":
        """Read every node of `store`, verified."""
        survey = cls()
        for cid in store.cids(NODE_PREFIX):
            try:
                survey._note(cid, decode_node(store.get(cid)), store)
            except BlockNotFound:
                continue  # deleted since it was listed
            except UnsupportedFormat:
                survey.foreign += 1
            except Corrupt as error:
                if not isinstance(error, DigestMismatch) and error.data.get("field") == "type":
                    survey.foreign += 1
                else:
                    survey.unreadable[cid] = error
            survey.nodes += 1
        return survey

    def _note(self, cid: Cid, node: Node, store: Store) -> None:
        match node:
            case Block():
                self.blocks[cid] = (node.prev, node.model)
                self.leaves.update(node.kv)
                if store.missing(node.kv):
                    self.incomplete.add(cid)
            case Segment():
                self.segments[cid] = tuple(link.to for link in node.links)
            case Conversation():
                self.conversations[cid] = node
                self.leaves.update(node.tail.kv or ())
            case Sealed():
                self.sealed.add(cid)
                self.leaves.add(node.manifest)
            case PinSet():
                self.leaves.update(each for each in node.links if each.codec == "raw")

    def blocks_of(self, conversation: Conversation) -> Iterator[Cid]:
        """List the blocks of a conversation whose segments are here."""
        for segment in conversation.segments:
            yield from self.segments.get(segment, ())

    def is_whole(self, store: Store, conversation: Conversation) -> bool:
        """Say whether everything a conversation links to is here."""
        return (
            all(segment in self.segments for segment in conversation.segments)
            and all(cid in self.blocks and cid not in self.incomplete for cid in self.blocks_of(conversation))
            and not store.missing([conversation.model, *(conversation.tail.kv or ())])
        )

    def prefix_key_of(self, store: Store, block: Cid) -> PrefixKey | None:
        """Compute a block's prefix key, or None if it or a block before it is absent, or of another model.

        Every block is read at most once over all calls.
        """
        path: list[Cid] = []
        at: Cid | None = block
        while at is not None and at not in self._keys and at in self.blocks:
            path.append(at)
            at = self.blocks[at][0]
        parent = None if at is None else self._keys.get(at)
        broken = at is not None and parent is None
        for cid in reversed(path):
            prev, model = self.blocks[cid]
            broken = broken or (prev is not None and self.blocks[prev][1] != model)
            tokens = None if broken else _tokens(store, cid)
            broken = tokens is None
            parent = None if tokens is None else prefix_key(model, parent, tokens)
            self._keys[cid] = parent
        return self._keys.get(block)


def _tokens(store: Store, block: Cid) -> tuple[int, ...] | None:
    try:
        return Block.decode(store.get(block)).tokens
    except BlockNotFound:
        return None  # deleted since it was listed
