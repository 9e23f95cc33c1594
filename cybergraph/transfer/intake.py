"""One segment coming in: what of it is here, what is still awaited, and in which order it may be stored.

Leaves are stored before their block and blocks before their segment, so that a fetch may stop anywhere and
nothing in the store promises more than it can keep.
"""

from collections.abc import Iterator, Sequence

from ..chain import Step
from ..cid import Cid
from ..store.base import Store
from ..store.memory import MemoryStore
from .landing import Landing
from .shape import Shape, check_leaf


class Desk(MemoryStore):
    """Nodes that are here but may not be stored yet, over the store they will go to."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._below = store

    def get(self, cid: Cid) -> bytes:
        """Give a node from the desk or the store, verified."""
        return super().get(cid) if super().has(cid) else self._below.get(cid)


class Intake:
    """Takes the blocks of one segment; each block must come before its leaves."""

    def __init__(
        self,
        shape: Shape,
        landing: Landing,
        desk: Desk,
        blocks: Sequence[Cid],
        steps: Iterator[Step],
        above: tuple[Cid, ...],
    ) -> None:
        """Take stock.

        `steps` is the walk over the whole conversation, standing at the first of `blocks`. `above` are nodes that
        a stream of this segment also carries.
        """
        self._shape = shape
        self._landing = landing
        self._desk = desk
        self._steps = steps
        self._linked = {*blocks, *above}
        """What has been linked to so far, here or not."""
        self._ahead = list(reversed(blocks))
        self._nodes = {block for block in blocks if landing.size_bytes(block) is None}
        """Blocks that have not come."""
        self.fresh = len(self._nodes) == len(blocks)
        """Nothing of the segment was here."""
        self._leaves: dict[Cid, int] = {}
        """Leaves that have not come, with the sizes they must have."""
        self._waiting: dict[Cid, list[Cid]] = {}
        """Leaf -> fetched blocks that wait for it."""
        self._lacking: dict[Cid, int] = {}
        """Fetched block -> number of its leaves that have not come."""
        self.passed: list[Step] = []
        """Blocks that were checked in their place, in order."""
        self._advance()

    @property
    def nodes(self) -> list[Cid]:
        """Blocks still to be asked for."""
        return [cid for cid in reversed(self._ahead) if cid in self._nodes]

    @property
    def leaves(self) -> list[Cid]:
        """Leaves still to be asked for, as far as their blocks are here."""
        return list(self._leaves)

    @property
    def done(self) -> bool:
        """Whether nothing is awaited."""
        return not self._ahead and not self._leaves

    def belongs(self, cid: Cid) -> bool:
        """Say whether a block of the segment, or a leaf of a block that has come, has this CID."""
        return cid in self._linked

    def take(self, cid: Cid, data: bytes) -> None:
        """Accept an awaited block whose bytes were hashed; others are ignored.

        Raises `MalformedNode` for one that is sound but does not belong where the conversation links it.
        """
        if cid in self._nodes:
            self._nodes.remove(cid)
            self._landing.count(cid, data)
            self._desk.put_many([(cid, data)], hashed=True)
            self._lacking[cid] = 0
            self._advance()
        elif (expected_bytes := self._leaves.get(cid)) is not None:
            check_leaf(cid, expected_bytes, len(data))
            del self._leaves[cid]
            self._landing.add(cid, data)
            for block in self._waiting.pop(cid, ()):
                self._lacking[block] -= 1
                self._store_if_whole(block)

    def _advance(self) -> None:
        while self._ahead and self._ahead[-1] not in self._nodes:
            self._ahead.pop()
            step = next(self._steps)
            self._admit(step)
            self.passed.append(step)

    def _admit(self, step: Step) -> None:
        self._linked.update(step.block.kv)
        for leaf, expected_bytes in self._shape.leaves_of(step.cid, step.block):
            held_bytes = self._landing.size_bytes(leaf)
            if held_bytes is None:
                held_bytes = self._leaves.setdefault(leaf, expected_bytes)
                if step.cid in self._lacking:
                    self._lacking[step.cid] += 1
                    self._waiting.setdefault(leaf, []).append(step.cid)
            check_leaf(leaf, expected_bytes, held_bytes)
        self._store_if_whole(step.cid)

    def _store_if_whole(self, block: Cid) -> None:
        if self._lacking.get(block) == 0:
            del self._lacking[block]
            self._landing.add(block, self._desk.get(block))
