"""Where the rows of a window lie: integers only.

A ring keeps the last `capacity` rows that were appended. It says which logical position its oldest row has and which
slot that row lies in; every other slot follows from these two, so no slot is ever derived from a position alone. Both
are plain integers that mean different things, hence two types.

>>> ring = Ring(capacity=3)
>>> for position in range(5):
...     ring, slot = ring.append(Position(position), layer=0)
>>> ring.origin_logical, ring.origin_physical, slot     # positions 2, 3 and 4 are left, the oldest in slot 2
(2, 2, 1)
>>> [ring.slot(Position(position)) for position in (2, 3, 4)]
[2, 0, 1]
>>> ring.runs(Position(2), Position(5))                 # in logical order
(Run(first=2, rows=1), Run(first=0, rows=2))
>>> ring.append(Position(6), layer=0)
Traceback (most recent call last):
    ...
cyberkv.cybergraph.errors.CacheDiscontinuity: layer 0: position 6 does not follow, 5 is next
"""

from dataclasses import dataclass
from typing import NamedTuple, NewType, Self

from ...cybergraph.errors import CacheDiscontinuity

Position = NewType("Position", int)
"""Logical: a token's place in its sequence."""
Slot = NewType("Slot", int)
"""Physical: a row's place in the memory of a ring."""


class Run(NamedTuple):
    """Neighbouring slots."""

    first: Slot
    rows: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Where rows that arrive together go."""

    ring: "Ring"
    """The ring that has them."""
    source_first: int
    """First of the arriving rows that is still there afterwards; more rows than the capacity push out their own."""
    source_rows: int
    overflow_rows: int
    """By how much the origin moved."""
    runs: tuple[Run, ...]
    """Slots of the rows that stay, in their order: none, one run, or two around the end."""


@dataclass(frozen=True, slots=True)
class Ring:
    """Bookkeeping of one ring. Immutable: what fails leaves nothing half done."""

    capacity: int
    len: int = 0
    origin_logical: Position = Position(0)
    """Position of the oldest row."""
    origin_physical: Slot = Slot(0)
    """Slot of the oldest row."""

    @classmethod
    def starting_at(cls, capacity: int, position: Position) -> Self:
        """Give the empty ring that a sequence built from 0 on has at `position`: rebuilt, so that nobody ships it."""
        return cls(capacity, 0, position, Slot(position % capacity))

    @property
    def end(self) -> Position:
        """Position that the next row must have."""
        return Position(self.origin_logical + self.len)

    def holds(self, first: Position, last: Position) -> bool:
        """Whether every position from `first` to `last` (excluded) is here."""
        return self.origin_logical <= first and last <= self.end

    def slot(self, position: Position) -> Slot:
        """Find a position that the ring holds, or its end."""
        return Slot((self.origin_physical + position - self.origin_logical) % self.capacity)

    def append(self, position: Position, *, layer: int) -> tuple[Self, Slot]:
        """Place one row; a full ring gives up its oldest. Raises `CacheDiscontinuity`."""
        self._require_next(position, layer)
        write = self.slot(position)
        if self.len < self.capacity:
            return type(self)(self.capacity, self.len + 1, self.origin_logical, self.origin_physical), write
        logical = Position(self.origin_logical + 1)
        return type(self)(self.capacity, self.len, logical, self.slot(logical)), write

    def append_batch(self, position: Position, rows: int, *, layer: int) -> Batch:
        """Place `rows` rows from `position` on. Raises `CacheDiscontinuity`."""
        self._require_next(position, layer)
        overflow = max(0, self.len + rows - self.capacity)
        logical = Position(self.origin_logical + overflow)
        ring = Ring(self.capacity, self.len + rows - overflow, logical, self.slot(logical))
        first = max(0, logical - position)
        return Batch(ring, first, rows - first, overflow, ring.runs(Position(position + first), ring.end))

    def upto(self, position: Position) -> Self:
        """Forget the rows from `position` on: they are about to be made again. Nothing may be left."""
        if position >= self.end:
            return self
        return type(self)(
            self.capacity, max(0, position - self.origin_logical), self.origin_logical, self.origin_physical
        )

    def runs(self, first: Position, last: Position) -> tuple[Run, ...]:
        """Give the slots of positions that the ring holds, in logical order."""
        rows, start = last - first, self.slot(first)
        if not rows:
            return ()
        before_end = min(rows, self.capacity - start)
        head = Run(start, before_end)
        return (head,) if before_end == rows else (head, Run(Slot(0), rows - before_end))

    def _require_next(self, position: Position, layer: int) -> None:
        if position != self.end:
            raise CacheDiscontinuity(
                f"layer {layer}: position {position} does not follow, {self.end} is next",
                layer=layer, expected=int(self.end), got=int(position),
            )  # fmt: skip
