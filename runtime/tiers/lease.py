"""Leases: pool rows that stay where they are for as long as somebody uses them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ...cybergraph.cid import Cid
from ...cybergraph.errors import CyberKVError
from ...cybergraph.identity import Difference
from ...cybergraph.verdict import Tier, deciding_field

if TYPE_CHECKING:
    from .coming import BlocksComing


@dataclass(frozen=True, slots=True)
class Miss:
    """Why reuse ended where it did."""

    position_start: int
    """First position that has to be computed."""
    reason: str
    cid: str | None = None
    error: CyberKVError | None = field(default=None, compare=False, repr=False)
    """What was raised, for whoever cannot go on without the block."""

    @property
    def difference(self) -> Difference | None:
        """The field that decided, where bytes are what they claim to be and nothing can go on from them."""
        return deciding_field(self.error)


class Lease:
    """The leading blocks of what was asked for, each in a pool row that is pinned until the lease is closed.

    Use it as a context manager: the rows are given back on every way out, unless `keep` has handed them over.

        with residency.ensure(blocks) as lease:
            attend(lease.rows)

    Closing twice is harmless. Not for use by several threads.
    """

    __slots__ = ("_release", "cids", "coming", "miss", "rows", "tiers")

    def __init__(self, release: Callable[[int], None]) -> None:
        """Start empty; `release` gives one row back."""
        self.rows: list[int] = []
        """Pool row of each block."""
        self.cids: list[Cid] = []
        self.tiers: list[Tier] = []
        """Where each block was found."""
        self.miss: Miss | None = None
        """Why there are fewer blocks than were asked for."""
        self.coming: BlocksComing | None = None
        """The last of them, where they are still on their way: for whoever takes the rows over, with these."""
        self._release = release

    def add(self, cid: Cid, row: int, tier: Tier) -> None:
        """Take a row over that is counted once for this lease."""
        self.rows.append(row)
        self.cids.append(cid)
        self.tiers.append(tier)

    def pin(self, cid: Cid, bring: Callable[[Cid, Callable[[int], None]], Tier | None]) -> None:
        """Take over a block that `bring` pins; a row that turned out to be in vain is given back."""
        before = len(self.rows)
        tier = bring(cid, self.rows.append)
        if tier is None:
            while len(self.rows) > before:
                self._release(self.rows.pop())
            return
        self.cids.append(cid)
        self.tiers.append(tier)

    def cut(self, blocks: int) -> None:
        """Give the rows behind the first `blocks` back."""
        while len(self.rows) > blocks:
            self._release(self.rows.pop())
        del self.cids[blocks:], self.tiers[blocks:]

    def keep(self) -> list[int]:
        """Hand the rows over: whoever takes them releases each in the pool, and the lease holds nothing any more."""
        rows, self.rows = self.rows, []
        return rows

    def close(self) -> None:
        """Give the rows back, the last one first: the beginning of a chain is what others share, and stays longest."""
        failed: BaseException | None = None
        coming, self.coming = self.coming, None
        if coming is not None:
            try:
                coming.stop()
            except BaseException as error:
                failed = error
        while self.rows:
            try:
                self._release(self.rows.pop())
            except BaseException as error:  # all of them, whatever goes wrong with one
                failed = failed or error
        if failed is not None:
            raise failed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
