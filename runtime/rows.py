"""Rows of a pool, counted by reference, wherever their bytes are.

A row is free, in use, or kept: without a user, and with content that its keeper (`tiers`) can still name. Kept rows
make way when there is no free one.
"""

from threading import RLock
from typing import Final, Protocol

from ..cybergraph.errors import TierFull

ARCHIVED: Final = 1 << 62
"""Stands in a page table for a block whose row was given back: no row has this number, so nothing reads it."""


class Keeper(Protocol):
    """Whoever knows what rows hold. Called with the pool's lock held."""

    def unused(self, row: int) -> bool:
        """Say whether a row that has just lost its last user is kept."""

    def evict(self) -> bool:
        """Drop one kept row (`Pool.drop`), and say whether there was one that may go."""


class Rows:
    """A fixed number of rows, counted by reference: what a pool keeps of them, wherever their bytes are.

    `lock` guards the counts; every method takes it, and a keeper may hold it over several calls.
    """

    def __init__(self, capacity_blocks: int) -> None:
        self.lock = RLock()
        self._references = [0] * capacity_blocks
        self._free = list(range(capacity_blocks - 1, -1, -1))
        self._kept: set[int] = set()
        self._keeper: Keeper | None = None

    def attach(self, keeper: Keeper) -> None:
        """Have a keeper decide about rows that nobody uses; what another one kept is dropped."""
        with self.lock:
            for row in sorted(self._kept, reverse=True):  # taken again in order: neighbours are read without a copy
                self.drop(row)
            self._keeper = keeper

    def allocate(self) -> int:
        """Take a free row, counted once. Raises `TierFull`."""
        with self.lock:
            if not self._free and not (self._keeper and self._keeper.evict()):
                raise TierFull(
                    f"all {len(self._references)} pool rows are in use",
                    hint="close a conversation or give the pool more blocks",
                    capacity_blocks=len(self._references),
                )
            row = self._free.pop()
            self._references[row] = 1
            return row

    def retain(self, row: int) -> int:
        """Count one more user of a row that is in use or kept."""
        if row == ARCHIVED:
            return row
        with self.lock:
            self._kept.discard(row)
            self._references[row] += 1
            return row

    def release(self, row: int) -> None:
        """Count one user less; the last one leaves the row to the keeper, or frees it."""
        if row == ARCHIVED:
            return
        with self.lock:
            if not self._references[row]:
                raise RuntimeError(f"row {row} has no user")
            self._references[row] -= 1
            if not self._references[row]:
                self._kept.add(row)
                if self._keeper is None or not self._keeper.unused(row):
                    self.drop(row)

    def drop(self, row: int) -> None:
        """Free a kept row."""
        with self.lock:
            if row in self._kept:
                self._kept.remove(row)
                self._free.append(row)

    def users(self, row: int) -> int:
        """Count the users of a row."""
        return self._references[row]

    @property
    def capacity_blocks(self) -> int:
        """All rows."""
        return len(self._references)

    @property
    def used_blocks(self) -> int:
        """Rows with at least one user."""
        return len(self._references) - len(self._free) - len(self._kept)

    @property
    def kept_blocks(self) -> int:
        """Rows without a user whose content is kept."""
        return len(self._kept)

    def check_integrity(self) -> list[str]:
        """List what is wrong with the counts: each row is free, kept or in use, and exactly one of these."""
        with self.lock:
            free, used = set(self._free), {row for row, count in enumerate(self._references) if count > 0}
            findings = [f"row {row} has {count} users" for row, count in enumerate(self._references) if count < 0]
            if len(free) != len(self._free):
                findings.append("a row is free twice")
            total = len(self._free) + len(self._kept) + len(used)
            if total != len(self._references) or free | self._kept | used != set(range(len(self._references))):
                findings.append(f"{len(free)} free, {len(self._kept)} kept and {len(used)} used rows are not all once")
            return findings
