"""What is left of a tier after something happened to it: preserved, forgotten, or unknown, which counts as lost.

An event can only take residency away. Only a verified read of a CID gives it back, for that CID (`Beliefs.learn`).

>>> seen = witness("sleep", level=1)
>>> seen.state.value, seen.kept.value, seen.warm, seen.serving
('sleeping', 'forgotten', False, False)
>>> witness("something else").kept.value
'unknown'
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, assert_never

from ...cybergraph.cid import Cid
from ...cybergraph.verdict import Tier


class Kept(StrEnum):
    """What became of the blocks of a tier."""

    PRESERVED = "preserved"
    FORGOTTEN = "forgotten"
    UNKNOWN = "unknown"
    """Counts as lost."""


class Event(StrEnum):
    """What can happen to a tier."""

    PAUSE = "pause"
    """The engine stops taking requests and keeps its pool."""
    SLEEP = "sleep"
    """The engine gives its device memory up (levels 1 and 2)."""
    WAKE = "wake"
    RESET = "reset"
    """The engine was asked to empty its cache."""
    POOL_RESET = "pool-reset"
    """Another pool, or another owner of its rows."""
    RESTART = "restart"
    """Another process: what it held in memory is gone."""
    GC = "gc"
    """Blocks were thrown out of the store, by `gc` or for room under a cap."""
    DISK_FULL = "disk-full"
    """The store takes nothing more. What it acknowledged it has."""
    PEER_NOT_FOUND = "peer-not-found"
    """A peer says that it has not got it (404)."""
    PEER_TIMEOUT = "peer-timeout"
    """A peer does not answer, or answers nonsense."""
    OTHER = "other"
    """Anything else."""

    @classmethod
    def parse(cls, text: str) -> "Event":
        """Read an event; what has no name here is `OTHER`."""
        return cls(text) if text in cls._value2member_map_ else cls.OTHER


class State(StrEnum):
    """What whoever runs the pool is doing."""

    SERVING = "serving"
    PAUSED = "paused"
    SLEEPING = "sleeping"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Witnessed:
    """What an event leaves."""

    state: State
    tiers: Mapping[Tier, Kept]

    @property
    def kept(self) -> Kept:
        """What became of the device pool."""
        return self.tiers[Tier.L0]

    @property
    def warm(self) -> bool:
        """Whether the pool may be counted on. Unknown is cold."""
        return self.kept is Kept.PRESERVED

    @property
    def serving(self) -> bool:
        """Whether requests are taken."""
        return self.state is State.SERVING


def witness(event: str, level: int | None = None) -> Witnessed:
    """Say what an event leaves of each tier. `level` is that of an engine's sleep; without it nothing is known."""
    known = Event.parse(event)
    match known:
        case Event.PAUSE:
            return Witnessed(State.PAUSED, _but({}))
        case Event.SLEEP if level in (1, 2):
            return Witnessed(State.SLEEPING, _but({Tier.L0: Kept.FORGOTTEN}))
        case Event.SLEEP:
            return Witnessed(State.ERROR, _but({Tier.L0: Kept.UNKNOWN}))
        case Event.WAKE:
            return Witnessed(State.SERVING, _but({Tier.L0: Kept.UNKNOWN}))
        case Event.RESET | Event.POOL_RESET:
            return Witnessed(State.SERVING, _but({Tier.L0: Kept.FORGOTTEN}))
        case Event.RESTART:
            gone = {Tier.L0: Kept.FORGOTTEN, Tier.L1: Kept.FORGOTTEN}
            return Witnessed(State.SERVING, _but({**gone, Tier.L2: Kept.UNKNOWN, Tier.L3: Kept.UNKNOWN}))
        case Event.GC:
            return Witnessed(State.SERVING, _but({Tier.L2: Kept.UNKNOWN}))
        case Event.DISK_FULL:
            return Witnessed(State.SERVING, _but({}))
        case Event.PEER_NOT_FOUND:
            return Witnessed(State.SERVING, _but({Tier.L3: Kept.FORGOTTEN}))
        case Event.PEER_TIMEOUT:
            return Witnessed(State.SERVING, _but({Tier.L3: Kept.UNKNOWN}))
        case Event.OTHER:
            return Witnessed(State.ERROR, dict.fromkeys(Tier, Kept.UNKNOWN))
        case _:
            assert_never(known)


def _but(changed: Mapping[Tier, Kept]) -> Mapping[Tier, Kept]:
    return {tier: changed.get(tier, Kept.PRESERVED) for tier in Tier}


MOST_BELIEFS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Belief:
    """What is thought of one block in one tier, and since when."""

    kept: Kept
    tick: int
    """Of the last verified read."""


class Beliefs:
    """Which blocks a tier that is not in this process has, as far as verified reads have shown.

    The least recently read are forgotten first, at 65,536. Ticks count uses, not seconds.
    """

    def __init__(self, most: int = MOST_BELIEFS) -> None:
        self._most = most
        self._beliefs: OrderedDict[Cid, Belief] = OrderedDict()

    def learn(self, cid: Cid, tick: int) -> None:
        """Note that a block was read and verified just now. Nothing else makes a belief."""
        self._beliefs[cid] = Belief(Kept.PRESERVED, tick)
        self._beliefs.move_to_end(cid)
        if len(self._beliefs) > self._most:
            self._beliefs.popitem(last=False)

    def note(self, kept: Kept, cid: Cid | None = None) -> None:
        """Take away what an event took: of one block, or of all."""
        match kept:
            case Kept.PRESERVED:
                return
            case Kept.FORGOTTEN | Kept.UNKNOWN:
                for each in list(self._beliefs) if cid is None else [cid] if cid in self._beliefs else []:
                    self._beliefs[each] = Belief(kept, self._beliefs[each].tick)
            case _:
                assert_never(kept)

    def holds(self, cid: Cid) -> bool:
        """Say whether the tier is known to have a block."""
        belief = self._beliefs.get(cid)
        return belief is not None and belief.kept is Kept.PRESERVED

    def stale(self, cid: Cid, tick: int) -> str | None:
        """Say of a block that counts as lost how old the last sight of it is; None where it does not, or never was."""
        belief = self._beliefs.get(cid)
        if belief is None or belief.kept is Kept.PRESERVED:
            return None
        return f"last read there {tick - belief.tick} uses ago, and {belief.kept} since: counts as lost"
