"""The two tiers in memory: blocks by CID in rows of the device pool (L0) and in host memory (L1).

A block is in one of them at most: it leaves L1 when it comes up, and L0 when it goes down. What has users is in L0 and
stays there. What is in memory was verified when it came in, and is not verified again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...cybergraph.cid import Cid
from ...cybergraph.errors import TierFull
from ...cybergraph.nodes import Block
from ...cybergraph.verdict import Tier
from ..pool import BlockPool, HostBlock
from .moves import MoveLog
from .policy import Action, Standing, disposal, eviction_key
from .witness import Kept

HOT_STEPS = 64
"""A block that was in use in this many last decode steps is hot."""


@dataclass(slots=True)
class Entry:
    """One block in memory: in a row, or as bytes, never both and never neither."""

    cid: Cid
    node: Block
    stamp: int
    row: int | None = None
    data: HostBlock | None = None
    stored: bool = False
    """The store has it, as far as is known."""
    borrowed: bool = False
    """It came from a peer, and the store had no room for it."""
    regenerated: bool = False
    """It was computed again and had the same CID: it can be made from its tokens."""
    used: int = 0
    """Tick of the last use."""
    since_step: int = 0
    """Decode steps that were done when it was last taken."""
    hot_step: int | None = None
    """The last decode step that may have used it."""

    @property
    def dirty(self) -> bool:
        """Whether it has to be written to the store before it may go."""
        return not self.stored and not self.borrowed


class Shelf:
    """Blocks in memory, within two budgets in bytes. Every method holds the pool's lock."""

    def __init__(
        self,
        pool: BlockPool,
        log: MoveLog,
        write_down: Callable[[Entry, list[memoryview]], None],
        at_peer: Callable[[Cid], bool],
        *,
        host_bytes: int,
        cached_bytes: int,
    ) -> None:
        """Take the pool over: its rows without users are this shelf's to name.

        `write_down` stores a dirty block (raises `TierFull`); `at_peer` says whether a peer is known to have a block.
        """
        self.pool, self.lock = pool, pool.lock
        self.host_bytes, self.cached_bytes = host_bytes, cached_bytes
        self.tick = 0
        self.steps = 0
        self.used_host_bytes = 0
        """Of blocks in host memory, and of what is set aside for those that are being read."""
        self.entries: dict[Cid, Entry] = {}
        self._log, self._write_down, self._at_peer = log, write_down, at_peer
        self._by_row: dict[int, Entry] = {}
        self._aside: list[HostBlock] = []
        self._stamp = 0
        self._queues: dict[Tier, list[tuple[int, Entry]]] = {Tier.L0: [], Tier.L1: []}
        self._arrived: dict[Tier, int] = {Tier.L0: 0, Tier.L1: 0}
        self._sorted_at: dict[Tier, int] = {Tier.L0: 0, Tier.L1: 0}
        """Arrivals among what may leave, in all and when the queue was made."""
        pool.attach(self)

    def tier_of(self, cid: Cid) -> Tier | None:
        """Say in which of the two tiers a block is."""
        entry = self.entries.get(cid)
        return None if entry is None else Tier.L1 if entry.row is None else Tier.L0

    def pin(self, cid: Cid, own: Callable[[int], None]) -> Tier | None:
        """Bring a block in memory up to L0 and count one user more, whom `own` tells the row. None where it is absent.

        Raises `TierFull`.
        """
        with self.lock:
            entry = self.entries.get(cid)
            if entry is None:
                return None
            if entry.row is not None:
                if not self.pool.users(entry.row):
                    entry.since_step = self.steps
                own(self.pool.retain(entry.row))
                return Tier.L0
            own(row := self.pool.allocate())
            if entry.data is None:  # making room for it threw it out
                return None
            self.pool.copy_in(row, entry.data)
            self._leave_host(entry)
            self._enter_row(entry, row)
            self._log.add(cid, Tier.L1, Tier.L0, self.pool.geometry.block_bytes)
            return Tier.L1

    def name(self, cid: Cid, node: Block, row: int, *, stored: bool, borrowed: bool = False) -> bool:
        """Let a row in use be found by the CID of what it holds, from now on and after its last user.

        A block that is named already keeps its row: False.
        """
        with self.lock:
            entry = self.entries.get(cid)
            if entry is None:
                self._stamp += 1
                entry = self.entries[cid] = Entry(cid, node, self._stamp, borrowed=borrowed)
            entry.stored |= stored
            if entry.row is not None:
                return False
            if entry.data is not None:
                self._log.add(cid, Tier.L1, None, self.pool.geometry.block_bytes)
                self._leave_host(entry)
            self._enter_row(entry, row)
            return True

    def set_aside(self) -> HostBlock | None:
        """Give host memory for one block, within the budget, to be read into; None where there is no room.

        It is then for `take_in` or `give_up`.
        """
        with self.lock:
            size_bytes = self.pool.geometry.block_bytes
            if not self._make_host_room(size_bytes):
                return None
            try:
                data = self.pool.host_block()
            except TierFull:
                return None
            self._aside.append(data)
            self.used_host_bytes += size_bytes
            return data

    def give_up(self, data: HostBlock) -> None:
        """Give back what was set aside, unless it was taken in."""
        with self.lock:
            if data in self._aside:
                self._aside.remove(data)
                self._close(data)

    def _close(self, data: HostBlock) -> None:
        self.used_host_bytes -= self.pool.geometry.block_bytes
        data.close()

    def take_in(self, cid: Cid, node: Block, data: HostBlock, *, borrowed: bool = False) -> bool:
        """Take a block whose verified bytes are in what was set aside; False where it is in memory already."""
        with self.lock:
            if cid in self.entries:
                return False
            self._stamp += 1
            entry = Entry(cid, node, self._stamp, data=data, stored=not borrowed, borrowed=borrowed, used=self.tick)
            self._aside.remove(data)
            self.entries[cid] = entry
            self._arrived[Tier.L1] += 1
            return True

    def holds_row(self, row: int) -> bool:
        """Say whether a row is named: its content must not be changed."""
        return row in self._by_row

    def _enter_row(self, entry: Entry, row: int) -> None:
        entry.row, entry.since_step = row, self.steps
        self._by_row[row] = entry

    def _leave_host(self, entry: Entry) -> None:
        if entry.data is not None:
            data, entry.data = entry.data, None
            self._close(data)

    def unused(self, row: int) -> bool:
        """See `Keeper`: a row that is named is kept, within the budget for such rows."""
        entry = self._by_row.get(row)
        if entry is None:
            return False
        entry.used = self.tick
        self._arrived[Tier.L0] += 1
        if self.steps > entry.since_step:
            entry.hot_step = self.steps
        if self.pool.kept_blocks * self.pool.geometry.block_bytes > self.cached_bytes:
            self.evict()
        return entry.row == row

    def evict(self) -> bool:
        """See `Keeper`: the first block in order that may go leaves L0, to L1 where that has room."""
        return any(self._demote(entry) for entry in self._order(Tier.L0))

    def _demote(self, entry: Entry) -> bool:
        size_bytes, row = self.pool.geometry.block_bytes, entry.row
        if row is None:
            return False
        if self._make_host_room(size_bytes):
            try:
                entry.data = self.pool.copy_out(row)
            except TierFull:
                return self._dispose(entry)
            self.used_host_bytes += size_bytes
            self._arrived[Tier.L1] += 1
            self._log.add(entry.cid, Tier.L0, Tier.L1, size_bytes)
            self._leave_row(entry, row)
            return True
        return self._dispose(entry)

    def _make_host_room(self, size_bytes: int) -> bool:
        if size_bytes > self.host_bytes:
            return False
        for entry in self._order(Tier.L1):
            if self.used_host_bytes + size_bytes <= self.host_bytes:
                break
            self._dispose(entry)
        return self.used_host_bytes + size_bytes <= self.host_bytes

    def _dispose(self, entry: Entry) -> bool:
        """Have a block leave memory if it may: dirty by way of the store; the sole copy stays."""
        reproducible, hot = self.is_reproducible(entry), self._is_hot(entry)
        action = disposal(dirty=entry.dirty, reproducible=reproducible, hot=hot).action
        if action is Action.KEEP or (action is Action.STORE and not self.try_write_down(entry)):
            return False
        self.forget(entry.cid)
        return True

    def write_down(self, entry: Entry) -> None:
        """Store a block. Raises `TierFull`."""
        self._write_down(entry, self.views(entry))
        self._log.add(entry.cid, self.tier_of(entry.cid), Tier.L2, self.pool.geometry.block_bytes)
        entry.stored, entry.borrowed = True, False

    def try_write_down(self, entry: Entry) -> bool:
        """Store a dirty block, and say whether there was room."""
        try:
            self.write_down(entry)
        except TierFull:
            return False
        return True

    def views(self, entry: Entry) -> list[memoryview]:
        """Give the leaves of a block, to be stored. Raises `TierFull`."""
        if entry.row is not None:
            return self.pool.read([entry.row])[0]
        return [] if entry.data is None else entry.data.leaves()

    def _leave_row(self, entry: Entry, row: int) -> None:
        del self._by_row[row]
        entry.row = None
        self.pool.drop(row)

    def is_reproducible(self, entry: Entry) -> bool:
        """Say whether a block could be had again: from the store, from a peer, or by computing what gave it before."""
        return entry.stored or entry.regenerated or self._at_peer(entry.cid)

    def _is_hot(self, entry: Entry) -> bool:
        return entry.hot_step is not None and entry.hot_step > self.steps - HOT_STEPS

    def standing(self, entry: Entry) -> Standing:
        """Say what decides when the turn of a block comes."""
        refs = 0 if entry.row is None else self.pool.users(entry.row)
        rebuild = 0 if entry.stored else 1 if self._at_peer(entry.cid) else 2
        return Standing(refs, self._is_hot(entry), entry.used, rebuild, entry.stamp)

    def _order(self, tier: Tier) -> Iterator[Entry]:
        """List what may leave a tier, in order of eviction.

        Sorted once and gone on with: what arrived since was used later than all that wait. So the queue is made anew
        where it ends, and where it comes to what is hot, before which the new ones go.
        """
        queue, fresh, passed = self._queues[tier], False, set[int]()
        while True:
            late = self._arrived[tier] > self._sorted_at[tier]
            if not queue or (late and not fresh and self._is_hot(queue[-1][1])):
                if fresh:
                    return
                fresh, self._sorted_at[tier] = True, self._arrived[tier]
                waiting = [each for each in self.entries.values() if self._may_leave(each, tier)]
                waiting.sort(key=lambda each: eviction_key(self.standing(each)), reverse=True)
                queue = self._queues[tier] = [(each.used, each) for each in waiting if each.stamp not in passed]
                continue
            used, entry = queue.pop()
            if used == entry.used and self._may_leave(entry, tier):
                passed.add(entry.stamp)
                yield entry

    def _may_leave(self, entry: Entry, tier: Tier) -> bool:
        if self.entries.get(entry.cid) is not entry or self.tier_of(entry.cid) is not tier:
            return False
        return entry.row is None or not self.pool.users(entry.row)

    def forget(self, cid: Cid) -> None:
        """Let a block be found no more. A row in use stays with its users."""
        with self.lock:
            tier = self.tier_of(cid)
            entry = self.entries.pop(cid, None)
            if entry is not None:
                self._log.add(cid, tier, None, self.pool.geometry.block_bytes)
                self._leave_host(entry)
                if entry.row is not None:
                    self._leave_row(entry, entry.row)

    def apply(self, tier: Tier, kept: Kept) -> None:
        """Take away what an event took of a tier; unknown counts as lost."""
        if kept is Kept.PRESERVED:
            return
        with self.lock:
            for entry in list(self.entries.values()):
                if tier is Tier.L2:
                    entry.stored = False
                elif self.tier_of(entry.cid) is tier:
                    self.forget(entry.cid)

    def check_integrity(self) -> list[str]:
        """List what does not add up in names, budgets and rows."""
        with self.lock:
            findings = self.pool.check_integrity()
            for entry in self.entries.values():
                if (entry.row is None) == (entry.data is None):
                    findings.append(f"block {entry.cid} is in both tiers or in none")
                if entry.row is not None and self._by_row.get(entry.row) is not entry:
                    findings.append(f"row {entry.row} is not named for its block")
            below = len(self._aside) + sum(entry.data is not None for entry in self.entries.values())
            host_bytes = below * self.pool.geometry.block_bytes
            if host_bytes != self.used_host_bytes or host_bytes > max(0, self.host_bytes):
                findings.append(f"{host_bytes} bytes in L1, {self.used_host_bytes} counted, {self.host_bytes} allowed")
            unused = {row for row in self._by_row if not self.pool.users(row)}
            if len(unused) != self.pool.kept_blocks or len(self._by_row) > len(self.entries):
                findings.append(f"{len(unused)} named rows without users, {self.pool.kept_blocks} kept")
            return findings
