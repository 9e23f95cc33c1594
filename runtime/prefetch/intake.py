"""What an arrival asks peers for, and where it goes: nodes, then leaves in the order in which layers need them."""

from collections.abc import Callable, Sequence
from threading import Condition
from typing import Final

from ...cybergraph.cid import Buffer, Cid
from ...cybergraph.errors import NotFinite
from ...cybergraph.nodes import Block
from ...cybergraph.transfer.shape import check_leaf
from ..finite import require_finite
from ..pool import Pool
from ..rows import ARCHIVED
from .order import NeedOrder, Place

ASKED_LEAVES: Final = 32
"""Of small groups, several are asked for at once, up to about so many leaves: a round trip for each would cost more."""


class Leaves:
    """The leaves of some blocks, each verified leaf copied into its rows at once.

    One thread brings, another one waits and may `cut`; `changed` guards what both touch.
    """

    graph = None

    def __init__(
        self, blocks: Sequence[Block], rows: Sequence[int], order: NeedOrder, pool: Pool,
        land: Callable[[Cid, Buffer], None], lose: Callable[[int, NotFinite], None], changed: Condition,
    ) -> None:  # fmt: skip
        """`rows[i]` is the pool row of `blocks[i]`, or `ARCHIVED`; `land` takes each new leaf, to be stored.

        `lose` is told the first block with numbers that nothing can go on from, and is to `cut` there.
        """
        self.blocks, self._rows, self._pool = blocks, rows, pool
        self._land, self._lose, self.changed = land, lose, changed
        self.stopped = False
        """Nothing is awaited any more."""
        self.arrived_bytes = 0
        self._places: dict[Cid, list[Place]] = {}
        self.lacking: set[Place] = set()
        self._stages: list[dict[Cid, None]] = []
        self.limit = len(blocks)
        for block, group in (place for stage in (*order.needed, order.unread) for place in stage):
            self._places.setdefault(blocks[block].kv[group], []).append((block, group))
            self.lacking.add((block, group))
        self._line_up(order)

    def _line_up(self, order: NeedOrder) -> None:
        self.order = order
        asked: set[Cid] = set()
        self._stages = []
        for stage in (*order.needed, order.unread):
            cids = [self.blocks[block].kv[group] for block, group in stage if (block, group) in self.lacking]
            self._stages.append({cid: None for cid in cids if cid not in asked})
            asked.update(cids)

    @property
    def done(self) -> bool:
        """See `Wanting`."""
        return self.stopped or not self.lacking

    def awaited(self) -> list[Cid]:
        """See `Wanting`. What is needed first, and no more than whole stages that make up a request."""
        listed: list[Cid] = []
        with self.changed:
            for stage in self._stages:
                if len(listed) >= ASKED_LEAVES:
                    break
                listed += stage
        return listed

    def belongs(self, cid: Cid) -> bool:
        """See `Wanting`."""
        return cid in self._places

    def take(self, cid: Cid, data: Buffer) -> bool:
        """See `Wanting`: `data` was hashed. Raises `MalformedNode` for a leaf of another size than the model's."""
        with self.changed:
            if self.stopped or not self._lacks(cid):
                return False
            for _, group in self._places[cid]:
                check_leaf(cid, self._pool.geometry.leaf_bytes(group), memoryview(data).nbytes)
            is_finite = self.examine(cid, data)
            for block, group in self._places[cid] if is_finite else ():
                if (row := self._rows[block]) != ARCHIVED and block < self.limit:
                    self._pool.leaves(row)[group][:] = memoryview(data).cast("B")
        self._land(cid, data)
        if is_finite:
            self.arrive(cid)
        return True

    def examine(self, cid: Cid, data: Buffer) -> bool:
        """Look at the numbers of a leaf, and say whether they are all finite; else its blocks are lost."""
        try:
            for group in {group for _, group in self._places[cid]}:
                require_finite(self._pool.geometry, group, cid, data)
        except NotFinite as error:
            self._lose(min(block for block, _ in self._places[cid]), error)
            return False
        return True

    def arrive(self, cid: Cid) -> None:
        """Note that the rows of a leaf hold its verified bytes."""
        with self.changed:
            for stage in self._stages:
                stage.pop(cid, None)
            for place in self._places[cid]:
                if place in self.lacking:
                    self.arrived_bytes += self._pool.geometry.leaf_bytes(place[1])
            self.lacking.difference_update(self._places[cid])
            self.changed.notify_all()

    def _lacks(self, cid: Cid) -> bool:
        return any(place in self.lacking for place in self._places.get(cid, ()))

    def present(self, here: set[Cid]) -> list[tuple[list[Cid], list[memoryview]]]:
        """Give, stage by stage, the leaves among `here` with the views they are read into, each place by itself.

        Leaves whose blocks have no row are noted as arrived.
        """
        batches: list[tuple[list[Cid], list[memoryview]]] = []
        for stage in self._stages:
            batch: tuple[list[Cid], list[memoryview]] = [], []
            for cid in [cid for cid in stage if cid in here]:
                rows = [(row, group) for block, group in self._places[cid] if (row := self._rows[block]) != ARCHIVED]
                for row, group in rows:
                    batch[0].append(cid)
                    batch[1].append(self._pool.leaves(row)[group])
                if not rows:
                    self.arrive(cid)
            if batch[0]:
                batches.append(batch)
        return batches

    def has(self, group: int) -> bool:
        """Say whether all that the layers of a group read is here."""
        return self.lacking.isdisjoint(self.order.needed[group])

    def first_lacking(self, cids: Sequence[Cid] | None = None) -> int:
        """Give the first block that lacks a leaf: one of `cids`, or any."""
        with self.changed:
            lacking = [
                place[0] for place in self.lacking if cids is None or self.blocks[place[0]].kv[place[1]] in cids
            ]  # fmt: skip
            return min(lacking, default=self.limit)

    def cut(self, limit: int, order: NeedOrder) -> None:
        """Want only what the first `limit` blocks need, in another order."""
        with self.changed:
            self.limit = limit
            self.lacking = {place for place in self.lacking if place[0] < limit}
            self._line_up(order)
            self.changed.notify_all()
