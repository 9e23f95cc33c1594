"""Residency: one state machine that brings blocks up to where they are used, whoever asks and from wherever.

Of each block that is asked for: named in a row, it is pinned; in host memory, it is copied up; under way for another
thread, that one is waited for; else it is read from the store, and what the store lacks comes from peers by way of the
store. What cannot be had ends the run with a reason, and the caller computes from there.

A thread that loads waits for nobody, and a thread that waits loads nothing: there is no deadlock.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from threading import Condition
from typing import Final

from ...cybergraph.cid import Buffer, Cid
from ...cybergraph.nodes import Block
from ...cybergraph.store.base import Store, not_found
from ...cybergraph.verdict import Located, Place, Tier
from ..pool import BlockPool, HostBlock
from ..rows import ARCHIVED
from .coming import BlocksComing, Run
from .lease import Lease, Miss
from .lower import Lower, Source, drop_failed
from .moves import MoveLog
from .shelf import Entry, Shelf
from .witness import Witnessed, witness

CACHED_BYTES: Final = 256 << 20
"""Rows that nobody uses and that can still be found."""


def _private(block: Cid) -> bool:  # noqa: ARG001
    return False


def _none(blocks: Sequence[Cid]) -> Collection[Cid]:  # noqa: ARG001
    return ()


class Residency:
    """Where the blocks of one model are, and bringing them up. Every method may be called from any thread."""

    def __init__(
        self,
        pool: BlockPool,
        store: Store,
        model_cid: Cid,
        *,
        host_bytes: int = 0,
        cached_bytes: int = CACHED_BYTES,
        sources: Sequence[Source] = (),
        may_ask: Callable[[Cid], bool] = _private,
        own: Callable[[Sequence[Cid]], Collection[Cid]] = _none,
    ) -> None:
        """Take over the rows of `pool` that nobody uses.

        `host_bytes` bounds L1; 0 switches it off, which is right where the pool is host memory itself. `cached_bytes`
        bounds the rows in L0 that are kept without a user. `sources` are asked for what the store lacks, but only for
        blocks of which `may_ask` says that their names may be told: by default for none. `own` gives those of some
        blocks that were computed here: the numbers of others are looked at when they are loaded, by default of all.
        """
        geometry = pool.geometry
        self.pool, self.store = pool, store
        self.log = MoveLog()
        self.lower = Lower(
            store, model_cid, geometry=geometry, sources=sources, may_ask=may_ask, own=own, log=self.log
        )  # fmt: skip
        self.shelf = Shelf(
            pool, self.log, self._write_down, self.lower.peers.holds, host_bytes=host_bytes, cached_bytes=cached_bytes
        )
        self._changed = Condition(pool.lock)
        self._flights: set[Cid] = set()

    def ensure(
        self,
        blocks: Sequence[Cid],
        tokens: Sequence[int] | None = None,
        *,
        prev: Cid | None = None,
        position_start: int = 0,
        unread: int = 0,
        later: bool = False,
    ) -> Lease:
        """Have as many leading `blocks` in pool rows as verify and bind, and pin them for the lease.

        They follow block `prev` (None: the start of a conversation) and hold `tokens`, which are not compared if None.
        `position_start` is the position of the first token, for the miss. The first `unread` of them are checked and
        get no row (`ARCHIVED`): their leaves are in the store, and nobody is about to read them.
        `later`: the last of them may be left on their way (`Lease.coming`), where the pool can wait layer by layer.
        Whoever then has these asks for nothing more before they are over: others may wait for them.

        Effects: reads, and for what the store lacks asks peers; each block is loaded once, however many threads want
        it. Raises `TierFull` where every row is in use; after any error nothing is held.
        """
        lease, size = Lease(self.pool.release), self.pool.geometry.block_size
        try:
            with self.pool.lock:
                self.shelf.tick += 1
            if unread:
                self._check(lease, blocks[:unread], tokens, prev, position_start)
            while len(lease.rows) < len(blocks) and lease.miss is None:
                at = len(lease.rows)
                before = blocks[at - 1] if at else prev
                rest = None if tokens is None else tokens[at * size :]
                run = self._pin(lease, blocks, rest, before, position_start)
                if run:
                    leaves = later and at + len(run) == len(blocks)
                    self._load(lease, run, rest, before, position_start + at * size, later=leaves)
        except BaseException:
            lease.close()
            raise
        return lease

    def _check(
        self, lease: Lease, blocks: Sequence[Cid], tokens: Sequence[int] | None, prev: Cid | None, position: int
    ) -> None:
        """Take blocks that need no row, as far as the store has them."""
        nodes, lease.miss, _ = self.lower.bind(blocks, tokens, prev, position, self.shelf.tick)
        for i, (cid, node) in enumerate(zip(blocks, nodes, strict=False)):
            if absent := self.store.missing(node.kv):
                at = position + i * self.pool.geometry.block_size
                lease.miss = drop_failed(self.store, at, not_found(absent[0]))
                return
            lease.add(cid, ARCHIVED, Tier.L2)

    def _pin(
        self, lease: Lease, blocks: Sequence[Cid], tokens: Sequence[int] | None, prev: Cid | None, position_start: int
    ) -> list[Cid]:
        """Do one step for the next block: pin it, wait for it, or claim it with those behind it that are absent too."""
        size, at = self.pool.geometry.block_size, len(lease.rows)
        cid = blocks[at]
        with self.pool.lock:
            entry = self.shelf.entries.get(cid)
            if entry is not None:
                window = None if tokens is None else tokens[:size]
                if field := self.lower.misfit(entry.node, prev, window):
                    reason = f"the index names a block whose field {field!r} does not fit"
                    lease.miss = Miss(position_start + at * size, reason, str(cid))
                    return []
                lease.pin(cid, self.shelf.pin)
                return []
            if cid in self._flights:
                self._changed.wait_for(lambda: cid not in self._flights)
                return []
            run: list[Cid] = []
            for each in blocks[at:]:
                if each in self.shelf.entries or each in self._flights or each in run:
                    break
                run.append(each)
            return run

    def _load(
        self, lease: Lease, run: list[Cid], tokens: Sequence[int] | None, prev: Cid | None, position: int, *,
        later: bool,
    ) -> None:  # fmt: skip
        """Read a run of blocks into rows of the lease, and name those that came; or begin to, with `later`."""
        first, tick, claimed = len(lease.rows), self.shelf.tick, set[Cid]()
        try:
            with self.pool.lock:
                if not (self._flights | self.shelf.entries.keys()).isdisjoint(run):
                    return  # another thread was faster
                claimed = set(run)
                self._flights |= claimed
            nodes, miss, loose = self.lower.bind(run, tokens, prev, position, tick)
            for cid, _ in zip(run, nodes, strict=False):
                lease.add(cid, self.pool.allocate(), Tier.L2)
            rows = lease.rows[first:]
            if later and rows and not self.lower.sources:  # peers are asked only once all that is here was read
                source, leaves = self.lower.reading(run, nodes), [node.kv for node in nodes]
                filling = self.pool.begin(source, leaves, rows)
                if filling is not None:
                    lease.coming = BlocksComing(self, filling, Run(run, nodes, rows, position))
                    lease.miss = miss
                    return
            loaded = self.lower.read(
                run, nodes, lambda source, leaves: self.pool.fill(source, leaves, rows[: len(leaves)]), position, tick
            )
            lease.cut(first + len(loaded.nodes))
            for i, node in enumerate(loaded.nodes, first):
                cid, fetched_bytes = lease.cids[i], loaded.fetched.get(lease.cids[i], 0)
                borrowed = cid in loaded.borrowed or cid in loose
                lease.tiers[i] = Tier.L3 if fetched_bytes else Tier.L2
                if from_store_bytes := self.pool.geometry.block_bytes - fetched_bytes * (cid in loaded.borrowed):
                    self.log.add(cid, Tier.L2, Tier.L0, from_store_bytes)
                self.shelf.name(cid, node, lease.rows[i], stored=not borrowed, borrowed=borrowed)
            lease.miss = loaded.miss or miss
        finally:
            if lease.coming is None:
                self.leave(claimed)

    def name(self, run: Run, blocks: int) -> None:
        """Let the first `blocks` of a run be found: their rows, which are in use, hold what was verified."""
        for cid, node, row in zip(run.cids, run.nodes[:blocks], run.rows, strict=False):
            self.log.add(cid, Tier.L2, Tier.L0, self.pool.geometry.block_bytes)
            self.shelf.name(cid, node, row, stored=True)

    def leave(self, claimed: Iterable[Cid]) -> None:
        """Say that blocks are no more under way."""
        with self.pool.lock:
            self._flights.difference_update(claimed)
            self._changed.notify_all()

    def warm(self, cid: Cid, prev: Cid | None = None) -> bool:
        """Bring one block, which follows `prev`, to host memory (L1), and say whether this call did.

        False where it is in memory, under way, nowhere to be had, or has no room there. Nothing is held afterwards.
        """
        size_bytes, claimed = self.pool.geometry.block_bytes, set[Cid]()
        data: HostBlock | None = None
        if size_bytes > self.shelf.host_bytes:
            return False
        try:
            with self.pool.lock:
                if cid in self._flights or cid in self.shelf.entries:
                    return False
                claimed = {cid}
                self._flights |= claimed
            nodes, _, loose = self.lower.bind([cid], None, prev, 0, self.shelf.tick)
            if not nodes:
                return False
            data = self.shelf.set_aside()
            if data is None:
                return False
            views = data.leaves()
            loaded = self.lower.read(
                [cid], nodes, lambda source, leaves: source.get_into(leaves[0], views), 0, self.shelf.tick
            )
            if not loaded.nodes:
                return False
            source = Tier.L0 if cid in loaded.borrowed else Tier.L2  # what no store took is counted as in memory
            came = self.shelf.take_in(cid, loaded.nodes[0], data, borrowed=cid in loaded.borrowed or cid in loose)
            if came or source is Tier.L0:
                self.log.add(cid, source, Tier.L1 if came else None, size_bytes)
            return came
        finally:
            if data is not None:
                self.shelf.give_up(data)
            self.leave(claimed)

    def keep(self, cid: Cid, node: Block, row: int, *, dirty: bool = False) -> None:
        """Let a computed block be found by its CID. Its row is in use, holds canonical bytes and never changes again.

        `dirty`: it is not in the store yet, and is written there before it leaves memory. Computing a block that is
        known already shows that it can be made again.
        """
        with self.pool.lock:
            known = self.shelf.entries.get(cid)
            if known is not None and known.row != row:
                known.regenerated = True
            if self.shelf.name(cid, node, row, stored=not dirty):
                self.log.add(cid, None, Tier.L0, self.pool.geometry.block_bytes)

    def secure(self, blocks: Sequence[Cid]) -> None:
        """Make sure that the store has blocks in memory that a conversation is about to count on.

        Its catalogue is asked, and nothing read. What it has lost meanwhile, it is given again. Raises `TierFull`.
        """
        with self.pool.lock:
            entries = [entry for cid in blocks if (entry := self.shelf.entries.get(cid)) is not None]
        absent = set(self.store.missing([part for each in entries for part in (each.cid, *each.node.kv)]))
        with self.pool.lock:
            for entry in entries:
                if self.shelf.tier_of(entry.cid) is not None and not absent.isdisjoint((entry.cid, *entry.node.kv)):
                    self.shelf.write_down(entry)

    def tier_of(self, cid: Cid) -> Tier | None:
        """Say where a block is in memory, or that a peer is known to have it; None for what only the store can tell."""
        tier = self.shelf.tier_of(cid)
        return Tier.L3 if tier is None and self.lower.peers.holds(cid) else tier

    def locate(self, blocks: Sequence[Cid]) -> Located:
        """Say where each of some blocks is, as far as it is known without reading them; nothing moves.

        What is not in memory counts as in the store, which shows when it is read, unless there are peers: then the
        store's catalogue is asked, and of what it lacks, what peers were seen to have is in L3.
        """
        size_bytes = self.pool.geometry.block_bytes
        with self.pool.lock:
            tiers = [self.shelf.tier_of(cid) for cid in blocks]
        absent = [cid for cid, tier in zip(blocks, tiers, strict=True) if tier is None]
        elsewhere = set(self.store.missing(absent)) if self.lower.sources else set()
        places: list[Place] = []
        for cid, tier in zip(blocks, tiers, strict=True):
            if tier is None:
                tier = Tier.L3 if cid in elsewhere else Tier.L2
                if tier is Tier.L3 and (stale := self.lower.peers.stale(cid, self.shelf.tick)):
                    return Located(places, (cid, stale, None))
            places.append(Place(cid, tier, 0 if tier is Tier.L0 else size_bytes))
        return Located(places)

    def step(self) -> None:
        """Note that one decode step was done: blocks in use are hot for the next ones."""
        self.shelf.steps += 1

    def note(self, event: str, level: int | None = None) -> Witnessed:
        """Take an event, and give up what it does not preserve (`witness`). Nothing becomes resident by it."""
        seen = witness(event, level)
        for tier, kept in seen.tiers.items():
            self.shelf.apply(tier, kept)
        self.lower.peers.note(seen.tiers[Tier.L3])
        return seen

    def reset(self) -> None:
        """Forget what is in memory, dirty blocks too. Rows in use stay with their users and are found no more."""
        for cid in reversed(list(self.shelf.entries)):
            self.shelf.forget(cid)

    def flush(self) -> int:
        """Write dirty blocks to the store and return how many could be."""
        with self.pool.lock:
            return sum(self.shelf.try_write_down(entry) for entry in list(self.shelf.entries.values()) if entry.dirty)

    def check_integrity(self) -> list[str]:
        """List what does not add up; empty where all is well."""
        with self.pool.lock:
            findings = self.shelf.check_integrity()
            if self._flights & self.shelf.entries.keys():
                findings.append("a block is in memory and under way")
            return findings

    def _write_down(self, entry: Entry, leaves: list[memoryview]) -> None:
        items: list[tuple[Cid, Buffer]] = list(zip(entry.node.kv, leaves, strict=True))
        items.append((entry.cid, entry.node.encode()))
        self.store.put_many(items, hashed=True)
