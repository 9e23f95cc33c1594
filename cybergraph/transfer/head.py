"""One conversation on its way here, page by page, so that several can take turns.

The root is asked for first and stored last. Between the two, every segment is taken in on its own: as one stream
where nothing of it is here and a peer has streams, the rest block by block, from all peers at once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Final, TypeAlias, TypeVar

from ..chain import Step, block_cids
from ..cid import Cid
from ..errors import BlockNotFound, DigestMismatch, MalformedNode, Refused, TierFull
from ..identity import require_same
from ..index import Index, IndexEntry
from ..limits import MAX_SEGMENT_LINKS
from ..nodes import Conversation, Model, Node, decode_node
from ..prefix import PrefixKey, prefix_key
from ..store.base import Store
from .intake import Desk, Few, Intake
from .landing import Landing
from .shape import Shape, check_leaf
from .sources import Sources

_SEGMENTS_AHEAD: Final = 32
"""Segment nodes asked for at once: under a megabyte, and one round trip for 130,000 tokens."""
_INDEXED_BLOCKS: Final = 4096
"""Blocks indexed at once: two megabytes of rows."""

N = TypeVar("N", bound=Node)
Begin: TypeAlias = Callable[[Cid, Conversation], None]
"""Hears of a conversation once its root is known to be one, before any block moves."""


@dataclass
class Shared:
    """What the conversations of one fetch have in common."""

    store: Store
    index: Index
    sources: Sources
    desk: Desk
    most_bytes: int | None
    free_bytes: int | None
    """Room that no conversation has claimed yet; None: not asked."""


class Head:
    """One conversation. First `open`, then `bring` to its end; in between others may have their turn."""

    def __init__(self, cid: Cid, domain: str, shared: Shared, landing: Landing) -> None:
        """Prepare. The index will note `domain` for each block: `UNKNOWN_DOMAIN`, or who signed it."""
        self.cid = cid
        self._domain = domain
        self.landing = landing
        self._shared = shared
        self._desk = shared.desk
        self._sources = shared.sources
        self._has_room = shared.free_bytes is None

    def open(self, expect: Model | None, begin: Begin) -> Shape:
        """Read root and model, and refuse what can be refused by them. Raises as `fetch`."""
        self._take_turn()
        root = self._root = self._node(self.cid, Conversation)
        model = self._node(root.model, Model)
        if expect is not None:
            require_same(expect, model, self.cid)
        shape = self._shape = Shape(self.cid, root, model)
        most_bytes = self._shared.most_bytes
        if most_bytes is not None and shape.leaf_bytes > most_bytes:
            raise Refused(
                f"{self.cid} has {shape.leaf_bytes} bytes, allowed are {most_bytes}",
                hint="allow more with --max-bytes",
                cid=str(self.cid), size_bytes=shape.leaf_bytes, most_bytes=most_bytes,
            )  # fmt: skip
        begin(self.cid, root)
        return shape

    def bring(self) -> Iterator[int]:
        """Bring everything, store and index it. Gives after each segment how many tokens it has come to.

        What came by then may still wait in `landing`. Raises as `fetch`.
        """
        self._take_turn()
        root, landing = self._root, self.landing
        if landing.size_bytes(self.cid) is None:
            landing.count(self.cid, self._desk.get(self.cid))
        if landing.size_bytes(root.model) is None:
            landing.add(root.model, self._desk.get(root.model))
        entries: list[IndexEntry] = []
        prefix: PrefixKey | None = None
        for segment, steps in enumerate(self._segments(), 1):
            for step in steps:
                if len(entries) >= _INDEXED_BLOCKS:
                    landing.flush()
                    landing.finish()
                    self._index_stored(entries)
                    entries = []
                entries.append(_entry(step, prefix, self._domain))
                prefix = entries[-1].prefix
            yield min(segment * MAX_SEGMENT_LINKS, self._shape.blocks) * root.block_size
            self._take_turn()
        self._tail()
        landing.flush()
        landing.finish()
        self._shared.store.put_many([(self.cid, self._desk.get(self.cid))], hashed=True)
        self._desk.delete_many([self.cid])
        self._index_stored(entries)

    def _take_turn(self) -> None:
        self._sources.turn_to(self.cid, self.landing.flush)

    def _index_stored(self, entries: list[IndexEntry]) -> None:
        if self._root.approx is None:  # approximate bytes must never be found by their inputs
            self._shared.index.add_blocks(entries)

    def _segments(self) -> Iterator[list[Step]]:
        """Take in every segment and give its blocks, each checked in its place."""
        root, shape, landing = self._root, self._shape, self.landing
        pages = pairwise(chain([None], block_cids(self._desk, root)))
        places = ((index, prev, cid) for index, (prev, cid) in enumerate(pages) if cid is not None)
        for start in range(0, len(root.segments), _SEGMENTS_AHEAD):
            ahead = root.segments[start : start + _SEGMENTS_AHEAD]
            lacking = {cid for cid in ahead if landing.size_bytes(cid) is None}
            # Another conversation that goes through the same segment may have it on the desk.
            for cid, data in self._all([cid for cid in ahead if cid in lacking and not self._desk.has(cid)]).items():
                self._desk.put_many([(cid, data)], hashed=True)
                landing.count(cid, data)
            for index, cid in enumerate(ahead, start):
                blocks = list(islice(places, shape.segment_blocks(index)))
                intake = Intake(shape, landing, self._desk, root, cid, blocks)
                self._claim_room(index, intake)
                self._sources.bring(intake)
                if not intake.done:
                    raise self._sources.verdict(intake.awaited())
                if cid in lacking and landing.size_bytes(cid) is None:
                    landing.add(cid, self._desk.get(cid))
                self._desk.delete_many([cid, *(block for _, _, block in blocks)])
                yield intake.steps

    def _claim_room(self, index: int, intake: Intake) -> None:
        """Refuse to begin what will not fit, once, at the first segment that is not whole here. Raises `TierFull`."""
        shared, segments = self._shared, self._root.segments
        if self._has_room or shared.free_bytes is None or intake.done:
            return
        # What comes after the first segment that differs from those of the others is in no other conversation.
        later = range(index + 1, len(segments))
        absent = (at for at in later if self.landing.size_bytes(segments[at]) is None)
        needed_bytes = intake.lacking_bytes + sum(map(self._shape.segment_blocks, absent)) * self._shape.block_bytes
        if needed_bytes > shared.free_bytes:
            raise TierFull(
                f"{self.cid} needs {needed_bytes} bytes more, and {shared.free_bytes} are free",
                hint="free some space or use another --home; what is here already is kept",
                cid=str(self.cid), needed_bytes=needed_bytes, free_bytes=shared.free_bytes,
            )  # fmt: skip
        shared.free_bytes -= needed_bytes
        self._has_room = True

    def _node(self, cid: Cid, kind: type[N]) -> N:
        if cid.codec == "raw":
            raise _other_type(cid, kind, "leaf")
        try:
            data = self._desk.get(cid)
        except BlockNotFound:
            data = self._all([cid])[cid]
        except DigestMismatch:
            # A damaged node of our own is replaced like one that is absent, if somebody has it.
            if not (got := self._bring([cid])):
                raise
            data = got[cid]
        self._desk.put_many([(cid, data)], hashed=True)
        node = decode_node(data)
        if not isinstance(node, kind):
            raise _other_type(cid, kind, type(node).TYPE)
        return node

    def _bring(self, cids: Sequence[Cid]) -> dict[Cid, bytes]:
        """Bring some blocks, as far as anybody gives them."""
        pile = Few(cids)
        self._sources.bring(pile)
        return pile.came

    def _all(self, cids: Sequence[Cid]) -> dict[Cid, bytes]:
        got = self._bring(cids)
        if missing := [cid for cid in cids if cid not in got]:
            raise self._sources.verdict(missing)
        return got

    def _tail(self) -> None:
        lacking: dict[Cid, int] = {}
        for leaf, expected_bytes in self._shape.tail_leaves:
            held_bytes = self.landing.size_bytes(leaf)
            if held_bytes is None:
                held_bytes = lacking.setdefault(leaf, expected_bytes)
            check_leaf(leaf, expected_bytes, held_bytes)
        got = self._bring(list(lacking))
        for leaf, data in got.items():
            check_leaf(leaf, lacking.pop(leaf), len(data))
            self.landing.add(leaf, data)
        if lacking:
            raise self._sources.verdict(list(lacking))


def _other_type(cid: Cid, kind: type[Node], got: str) -> MalformedNode:
    return MalformedNode(
        f"{cid} is a {got}, not a {kind.TYPE}", field="type", cid=str(cid), expected=kind.TYPE, got=got
    )


def _entry(step: Step, parent: PrefixKey | None, domain: str) -> IndexEntry:
    block = step.block
    key = prefix_key(block.model, parent, block.tokens)
    # Adopted: who computed it is not known. The index keeps a domain that it knows already.
    return IndexEntry(key, step.cid, block.prev, block.model, domain)
