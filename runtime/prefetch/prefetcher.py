"""A thread that walks ahead of heads and brings blocks from the store, or from peers, to host memory.

It holds nothing: no lease, no row. What it has brought is found by `Residency.ensure` like anything in memory, and a
block that is under way for one is waited for by the other.

    with Prefetcher(residency, budget_bytes=64 << 20) as prefetcher, prefetcher.walk(blocks) as walk:
        for at, block in enumerate(blocks):
            with residency.ensure([block], prev=...) as lease:
                walk.advance(at + 1)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Condition, Thread
from types import TracebackType
from typing import Self

from ...cybergraph.cid import Cid
from ...cybergraph.verdict import Tier
from ..tiers import Residency
from .plan import Head, Want, plan


@dataclass(frozen=True, slots=True)
class Tally:
    """What came of the blocks that were brought: each is one of the three."""

    hits: int = 0
    """In memory when a head came to them."""
    wasted: int = 0
    """Pushed out before that, or left behind by the last head that was to read them."""
    waiting: int = 0
    """In host memory, and to be read."""
    block_bytes: int = 0

    @property
    def brought_bytes(self) -> int:
        """Bytes that were brought."""
        return (self.hits + self.wasted + self.waiting) * self.block_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes that were brought and used."""
        return self.hits * self.block_bytes

    @property
    def wasted_bytes(self) -> int:
        """Bytes that were brought in vain."""
        return self.wasted * self.block_bytes


@dataclass(frozen=True, slots=True)
class _InPool:
    """The blocks that need not be brought: they are where they are used."""

    residency: Residency

    def __contains__(self, cid: object) -> bool:
        return isinstance(cid, Cid) and self.residency.shelf.tier_of(cid) is Tier.L0


class Walk:
    """One head. `advance` it as blocks are read, and close it."""

    def __init__(self, prefetcher: "Prefetcher", number: int) -> None:
        self._prefetcher, self._number = prefetcher, number

    def advance(self, at: int) -> None:
        """Say that the blocks before index `at` were read."""
        self._prefetcher._advance(self._number, at)  # noqa: SLF001 - the two are one

    def close(self) -> None:
        """Look ahead no more. Harmless twice."""
        self._prefetcher._drop(self._number)  # noqa: SLF001

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Prefetcher:
    """Walks ahead of any number of heads. Every method may be called from any thread."""

    def __init__(
        self, residency: Residency, *, budget_bytes: int | None = None, ahead_blocks: int | None = None
    ) -> None:
        """Walk ahead of each head by at most `ahead_blocks`.

        What waits to be read takes at most `budget_bytes` of host memory; None, or more than that has, is half of it:
        what leaves the pool needs room there, too. Without host memory (L1) nothing is brought.
        """
        self._residency, block_bytes = residency, residency.pool.geometry.block_bytes
        host_bytes = residency.shelf.host_bytes
        self.budget_bytes = host_bytes // 2 if budget_bytes is None else min(budget_bytes, host_bytes)
        self._most_blocks, self._ahead_blocks = self.budget_bytes // block_bytes, ahead_blocks
        self._heads: dict[int, Head] = {}
        self._places: dict[int, dict[Cid, int]] = {}
        """Where each block stands, by head."""
        self._prevs: dict[int, Cid | None] = {}
        self._numbers = 0
        self._waiting: set[Cid] = set()
        self._failed: set[Cid] = set()
        """Blocks that could not be had. They are tried again when another head comes."""
        self._tally = Tally(block_bytes=block_bytes)
        self._changed = Condition()
        self._closed = False
        self._thread: Thread | None = None

    def walk(self, blocks: Sequence[Cid], *, at: int = 0, prev: Cid | None = None) -> Walk:
        """Walk ahead of a head that reads `blocks`, which follow `prev`, from index `at` on."""
        with self._changed:
            number, self._numbers = self._numbers, self._numbers + 1
            self._heads[number], self._prevs[number] = Head(tuple(blocks), at), prev
            self._places[number] = {cid: index for index, cid in enumerate(blocks)}
            self._failed.clear()
            if self._thread is None and not self._closed and self._most_blocks:
                self._thread = Thread(target=self._run, name="prefetch", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return Walk(self, number)

    @property
    def tally(self) -> Tally:
        """What came of what was brought so far."""
        with self._changed:
            self._note_lost()
            return replace(self._tally, waiting=len(self._waiting))

    def idle(self, timeout_s: float | None = None) -> bool:
        """Wait until there is nothing to bring, and say whether it came to that."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or not self._wants(), timeout_s)

    def close(self) -> None:
        """Stop, and wait for the block that is under way. What was brought stays in host memory."""
        with self._changed:
            self._closed = True
            for number in list(self._heads):
                self._drop(number)
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _advance(self, number: int, at: int) -> None:
        with self._changed:
            if (head := self._heads.get(number)) is None:
                return
            self._note_lost()
            places = self._places[number]
            used = {cid for cid in self._waiting if head.at <= places.get(cid, -1) < at}
            self._waiting -= used
            self._tally = replace(self._tally, hits=self._tally.hits + len(used))
            self._heads[number] = replace(head, at=max(at, head.at))
            self._note_left()
            self._changed.notify_all()

    def _drop(self, number: int) -> None:
        with self._changed:
            if self._heads.pop(number, None) is not None:
                del self._prevs[number], self._places[number]
                self._note_lost()
                self._note_left()
                self._changed.notify_all()

    def _note_lost(self) -> None:
        """Count what was pushed out of memory before a head came to it."""
        self._waste({cid for cid in self._waiting if self._residency.shelf.tier_of(cid) is None})

    def _note_left(self) -> None:
        """Count what no head is to read any more."""
        heads = [(head.at, self._places[number]) for number, head in self._heads.items()]
        self._waste({cid for cid in self._waiting if all(places.get(cid, -1) < at for at, places in heads)})

    def _waste(self, cids: set[Cid]) -> None:
        self._waiting -= cids
        self._tally = replace(self._tally, wasted=self._tally.wasted + len(cids))

    def _wants(self) -> list[Want]:
        """List what is to be brought, the first first, within what the budget leaves."""
        self._note_lost()
        numbers, tier_of = list(self._heads), self._residency.shelf.tier_of
        ahead = plan(
            [self._heads[number] for number in numbers], most_blocks=self._most_blocks, in_use=_InPool(self._residency),
            block_size=self._residency.pool.geometry.block_size, ahead_blocks=self._ahead_blocks,
        )  # fmt: skip
        wants = [want for want in ahead if tier_of(want.cid) is None and want.cid not in self._failed]
        room = self._most_blocks - len(self._waiting)
        return [replace(want, head=numbers[want.head]) for want in wants][: max(0, room)]

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (wants := self._wants()) and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                want = wants[0]  # asked again, the list may be another: blocks move without this lock
                head = self._heads[want.head]
                prev = head.blocks[want.index - 1] if want.index else self._prevs[want.head]
            try:
                came = self._residency.warm(want.cid, prev)
            except Exception:  # whoever reads the block hears of it; this thread is there for the others
                came = False
            with self._changed:
                if came:
                    self._waiting.add(want.cid)
                    if (served := self._heads.get(want.head)) is not None:
                        self._heads[want.head] = replace(served, served=served.served + 1)
                    self._note_left()
                elif self._residency.shelf.tier_of(want.cid) is None:
                    self._failed.add(want.cid)
                self._changed.notify_all()
