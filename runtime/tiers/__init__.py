"""Residency: which tier holds a block now, and bringing blocks up to where they are used.

L0 is the device pool, L1 host memory, L2 the store, L3 peers. `Residency.ensure` brings blocks up and gives a `Lease`
on their rows; `witness` says what an event leaves of a tier; `policy` what goes first when one needs room.
"""

from .lease import Lease, Miss
from .lower import Source, drop_failed
from .moves import Move, MoveLog, Outcome, replay
from .residency import CACHED_BYTES, Residency
from .witness import Belief, Beliefs, Event, Kept, State, Witnessed, witness

__all__ = [
    "CACHED_BYTES", "Belief", "Beliefs", "Event", "Kept", "Lease", "Miss", "Move", "MoveLog", "Outcome", "Residency",
    "Source", "State", "Witnessed", "drop_failed", "replay", "witness",
]  # fmt: skip
