"""Every block that moves between tiers leaves a record, and is counted once for each hop.

>>> from ...cybergraph.cid import Cid
>>> cid, log = Cid.of(b"a", "dag-cbor", "sha2-256"), MoveLog()
>>> for move in ((None, Tier.L0), (Tier.L0, Tier.L1), (Tier.L1, Tier.L0)):
...     log.add(cid, *move, 100)
>>> log.blocks[Tier.L0, Tier.L1], log.read_bytes(Tier.L1), log.moves[-1].verdict
(1, 100, <Verdict.HIT: 'HIT'>)
>>> replay(log.moves) == {cid: {Tier.L0}}
True
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, assert_never

from ...cybergraph.cid import Cid
from ...cybergraph.verdict import Tier, Verdict

MOST_MOVES: Final = 4096


class Outcome(StrEnum):
    """How a move ended."""

    OK = "ok"
    FAULT = "fault"
    """The bytes are there and cannot be used or reached now."""
    MISSED = "missed"
    """The tier has not got it."""
    UNKNOWN = "unknown"
    """It cannot be told: counts as absent."""


@dataclass(frozen=True, slots=True)
class Move:
    """One block on its way from one tier to another."""

    number: int
    """Counts all moves, those that the log no longer holds too."""
    cid: Cid
    source: Tier | None
    """None where it was computed."""
    target: Tier | None
    """None where it was dropped."""
    size_bytes: int
    outcome: Outcome

    @property
    def verdict(self) -> Verdict | None:
        """What the move amounts to for a lookup; None where nothing can be said."""
        match self.outcome:
            case Outcome.OK:
                return Verdict.HIT
            case Outcome.FAULT:
                return Verdict.FAULT
            case Outcome.MISSED:
                return Verdict.RECOMPUTE
            case Outcome.UNKNOWN:
                return None
            case _:
                assert_never(self.outcome)


class MoveLog:
    """The last 4,096 moves, and sums over all of them."""

    def __init__(self, most: int = MOST_MOVES) -> None:
        self.moves: deque[Move] = deque(maxlen=most)
        self.blocks: Counter[tuple[Tier | None, Tier | None]] = Counter()
        """Blocks that arrived, by (source, target)."""
        self.bytes: Counter[tuple[Tier | None, Tier | None]] = Counter()
        self.failed: Counter[Outcome] = Counter()
        self._number = 0

    def add(
        self, cid: Cid, source: Tier | None, target: Tier | None, size_bytes: int, outcome: Outcome = Outcome.OK
    ) -> None:
        """Record one hop of one block."""
        self.moves.append(Move(self._number, cid, source, target, size_bytes, outcome))
        self._number += 1
        if outcome is Outcome.OK:
            self.blocks[source, target] += 1
            self.bytes[source, target] += size_bytes
        else:
            self.failed[outcome] += 1

    def read_bytes(self, tier: Tier) -> int:
        """Give the bytes that came out of a tier to another one."""
        return sum(size for (source, target), size in self.bytes.items() if source is tier and target is not None)


def replay(moves: Iterable[Move]) -> dict[Cid, set[Tier]]:
    """Say from a whole log which blocks are in memory, and where."""
    held: dict[Cid, set[Tier]] = {}
    for move in moves:
        if move.outcome is not Outcome.OK:
            continue
        tiers = held.setdefault(move.cid, set())
        if move.source in (Tier.L0, Tier.L1) and move.target is not Tier.L2:
            tiers.discard(move.source)
        if move.target in (Tier.L0, Tier.L1):
            tiers.add(move.target)
    return {cid: tiers for cid, tiers in held.items() if tiers}
