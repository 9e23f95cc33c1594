"""One segment coming in: what of it is here, what is still awaited, and in which order it may be stored.

Leaves are stored before their block and blocks before their segment, so that a fetch may stop anywhere and
nothing in the store promises more than it can keep. Blocks may come in any order, from several sources.
"""

from collections.abc import Iterable, Sequence

from ..chain import Step, checked_step
from ..cid import Buffer, Cid
from ..nodes import Block, Conversation
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


class Few:
    """Nodes, and leaves of a tail, that are wanted for themselves."""

    graph = None

    def __init__(self, cids: Iterable[Cid] = ()) -> None:
        self._awaited = dict.fromkeys(cids)
        self.came: dict[Cid, bytes] = {}
        self.stopped = False
        """Nothing is awaited any more."""

    @property
    def done(self) -> bool:
        """See `Wanting`."""
        return self.stopped or not self._awaited

    def awaited(self) -> list[Cid]:
        """See `Wanting`."""
        return list(self._awaited)

    def belongs(self, cid: Cid) -> bool:
        """See `Wanting`."""
        return cid in self._awaited

    def take(self, cid: Cid, data: Buffer) -> bool:
        """See `Wanting`."""
        if cid not in self._awaited:
            return False
        del self._awaited[cid]
        self.came[cid] = bytes(data)
        return True


class Intake:
    """Takes the blocks of one segment; each block must come before its leaves."""

    def __init__(
        self,
        shape: Shape,
        landing: Landing,
        desk: Desk,
        root: Conversation,
        segment: Cid,
        places: Sequence[tuple[int, Cid | None, Cid]],
    ) -> None:
        """Take stock. `places` are the blocks of the segment: index, the block before, the block."""
        self._shape = shape
        self._landing = landing
        self._desk = desk
        self._root = root
        self._segment = segment
        self._places: dict[Cid, list[tuple[int, Cid | None]]] = {}
        for index, prev, cid in places:
            self._places.setdefault(cid, []).append((index, prev))
        self._linked = {*self._places, segment, root.model}
        """What has been linked to so far, here or not, and what a stream of the segment also carries."""
        self._nodes = dict.fromkeys(cid for cid in self._places if landing.size_bytes(cid) is None)
        """Blocks that have not come, in order."""
        self._leaves: dict[Cid, int] = {}
        """Leaves that have not come, with the sizes they must have."""
        self._waiting: dict[Cid, list[Cid]] = {}
        """Leaf -> fetched blocks that wait for it."""
        self._kv: dict[Cid, tuple[Cid, ...]] = {}
        """Block that is here -> its leaves."""
        self._lacking: dict[Cid, int] = {}
        """Fetched block -> number of its leaves that have not come."""
        self._steps: list[Step] = []
        self._fresh = len(self._nodes) == len(self._places)
        for cid in self._places:
            if cid not in self._nodes:
                self._admit(cid)

    @property
    def graph(self) -> Cid | None:
        """The segment, while nothing of it is here: then a stream of everything below it repeats nothing."""
        return self._segment if self._fresh else None

    @property
    def done(self) -> bool:
        """Whether nothing is awaited."""
        return not self._nodes and not self._leaves

    @property
    def lacking_bytes(self) -> int:
        """Bytes of the leaves that have not come."""
        return len(self._nodes) * self._shape.block_bytes + sum(self._leaves.values())

    @property
    def steps(self) -> list[Step]:
        """Blocks that were checked in their place, in order."""
        return sorted(self._steps, key=lambda step: step.index)

    def awaited(self) -> list[Cid]:
        """List what may be asked for, in the order of the chain: blocks, and in place of those here their leaves."""
        listed: dict[Cid, None] = {}
        for cid in self._places:
            if cid in self._nodes:
                listed[cid] = None
            else:
                listed.update(dict.fromkeys(leaf for leaf in self._kv[cid] if leaf in self._leaves))
        return list(listed)

    def belongs(self, cid: Cid) -> bool:
        """Say whether a block of the segment, or a leaf of a block that has come, has this CID."""
        return cid in self._linked

    def take(self, cid: Cid, data: Buffer) -> bool:
        """Accept an awaited block whose bytes were hashed, and say whether it was awaited.

        Raises `MalformedNode` for one that is sound but does not belong where the conversation links it.
        """
        if cid in self._nodes:
            self._fresh = False
            del self._nodes[cid]
            self._landing.count(cid, data)
            self._desk.put_many([(cid, data)], hashed=True)
            self._lacking[cid] = 0
            self._admit(cid)
        elif (expected_bytes := self._leaves.get(cid)) is not None:
            check_leaf(cid, expected_bytes, len(data))
            del self._leaves[cid]
            self._landing.add(cid, data)
            for block in self._waiting.pop(cid, ()):
                self._lacking[block] -= 1
                self._store_if_whole(block)
        else:
            return False
        return True

    def _admit(self, cid: Cid) -> None:
        block = Block.decode(self._desk.get(cid))
        self._steps += [checked_step(self._root, index, prev, cid, block) for index, prev in self._places[cid]]
        self._linked.update(block.kv)
        self._kv[cid] = block.kv
        absent = self._landing.absent(block.kv)
        for leaf, expected_bytes in self._shape.leaves_of(cid, block):
            held_bytes = None if leaf in absent else self._landing.size_bytes(leaf)
            if held_bytes is None:
                held_bytes = self._leaves.setdefault(leaf, expected_bytes)
                if cid in self._lacking:
                    self._lacking[cid] += 1
                    self._waiting.setdefault(leaf, []).append(cid)
            check_leaf(leaf, expected_bytes, held_bytes)
        self._store_if_whole(cid)

    def _store_if_whole(self, block: Cid) -> None:
        if self._lacking.get(block) == 0:
            del self._lacking[block]
            self._landing.add(block, self._desk.get(block))
