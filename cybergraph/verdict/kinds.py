"""The words of a verdict: what is done with a block, where it is, and what either way costs.

>>> choose(65_536, 12_500_000, tokens=16, prefill_tokens_s=1000)
Choice(load_s=0.00524288, compute_s=0.016)
>>> choose(65_536, 12_500_000, tokens=16, prefill_tokens_s=1000).is_load
True
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import assert_never

from ..cid import Cid
from ..errors import CyberKVError, NotFinite
from ..identity import Difference

OFF_BY = "off by "
"""What stands before a measured error, in the reason why a root is approximate."""
_ERROR = re.compile(rf"{OFF_BY}(\d+(?:\.\d+)?(?:e[+-]\d+)?)")


def deciding_field(error: CyberKVError | None) -> Difference | None:
    """Give the field for which a sound block is not used; None where it is absent or damaged."""
    if not isinstance(error, NotFinite):
        return None
    return Difference(str(error.data["field"]), error.data["expected"], error.data["got"])


def measured_error(reason: str) -> float | None:
    """Read the error that a reason names; None where it names none, or other reasons join it.

    >>> measured_error("splice: 20% of the documents recomputed, K/V of layer 1 off by 0.25, KL 1e-05")
    0.25
    >>> measured_error("fast eviction of 3:8: its influence survives in deeper layers") is None
    True
    """
    found = None if "; " in reason else _ERROR.search(reason)
    return float(found[1]) if found else None


class Tier(IntEnum):
    """Where a block is. The lower the number, the nearer to where it is used."""

    L0 = 0
    """Rows of the device pool."""
    L1 = 1
    """Host memory."""
    L2 = 2
    """The store of this home."""
    L3 = 3
    """Peers."""

    def __str__(self) -> str:
        return self.name


class Verdict(StrEnum):
    """What is done with one block. Exactly one holds for each."""

    HIT = "HIT"
    """Usable from where it is asked for: in that tier, or a nearer one."""
    FAULT = "FAULT"
    """Here or at a peer, in a lower tier than asked: it is loaded."""
    RECOMPUTE = "RECOMPUTE"
    """Computed: absent, damaged, no longer surely there, or cheaper to compute than to load."""
    REFUSE = "REFUSE"
    """Not used, though there is one: made under another identity (the reason names the first field that differs), given
    up by an edit, or made elsewhere where nobody vouches for it, or several do and contradict one another. It is
    computed. (What is sealed tells nothing of its text, so no text can meet it: to go on from it is an error.)"""
    ABSTAIN = "ABSTAIN"
    """Not loaded: the bytes of this request were spent before it."""
    RECONCILED = "RECONCILED"
    """Answered by an approximation, with its measured error."""

    @property
    def loads(self) -> bool:
        """Whether the block's tokens are taken from what exists, and not computed."""
        match self:
            case Verdict.HIT | Verdict.FAULT | Verdict.RECONCILED:
                return True
            case Verdict.RECOMPUTE | Verdict.REFUSE | Verdict.ABSTAIN:
                return False
            case _:
                assert_never(self)


@dataclass(frozen=True, slots=True)
class BlockVerdict:
    """What happens to one block of a text, with what it costs."""

    index: int
    position_start: int
    verdict: Verdict
    reason: str
    """Empty for a hit."""
    cid: Cid | None = None
    """The block, or the node or leaf that is missing or damaged."""
    difference: Difference | None = None
    """The field that decided, its value here (`a`) and there (`b`): of an identity, of a budget, of both times."""
    load_bytes: int = 0
    """Payload that is there to be moved; 0 for what is in the device pool."""
    compute_tokens: int = 0
    """Tokens to compute."""
    load_s: float | None = None
    """Estimate of loading it; None where nothing is there or the rate is not known."""
    compute_s: float | None = None
    """Estimate of computing it, whatever the verdict; None where the rate is not known."""
    tier: Tier | None = None
    """Where it is; None where it is nowhere that was looked at."""
    error: float | None = None
    """For what was reconciled: its measured error, in the measure that the reason names; None where none was taken."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Estimates of the two ways to the same tokens, in seconds."""

    load_s: float
    compute_s: float

    @property
    def is_load(self) -> bool:
        """Whether loading is the cheaper way. Equal ones are loaded, which leaves the processor free."""
        return self.load_s <= self.compute_s

    @property
    def reason(self) -> str:
        """Why computing was chosen, with both estimates."""
        times = f"loading takes {self.load_s / self.compute_s:.3g} times as long as computing"
        return f"{times}: {self.load_s:.3g} s against {self.compute_s:.3g} s"


def choose(load_bytes: int, load_bytes_s: float, *, tokens: int, prefill_tokens_s: float) -> Choice:
    """Weigh loading a payload against computing the tokens it stands for. The rates are positive."""
    return Choice(load_bytes / load_bytes_s, tokens / prefill_tokens_s)


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured speeds. What is missing is not known, and nothing is weighed with it."""

    prefill_tokens_s: float | None = None
    load_bytes_s: Mapping[Tier, float] = field(default_factory=dict)
    least_gain: float = 1.0
    """Computing is chosen where loading takes more than this times as long."""

    def load_s(self, tier: Tier, size_bytes: int) -> float | None:
        """Estimate a load; what moves no bytes takes no time."""
        rate = self.load_bytes_s.get(tier)
        return 0.0 if not size_bytes else size_bytes / rate if rate else None

    def compute_s(self, tokens: int) -> float | None:
        """Estimate a prefill."""
        return tokens / self.prefill_tokens_s if self.prefill_tokens_s else None


@dataclass(frozen=True, slots=True)
class Place:
    """A block that was found."""

    cid: Cid
    tier: Tier
    load_bytes: int
    """Payload to move from there; 0 in the device pool."""


@dataclass(frozen=True, slots=True)
class Located:
    """The leading blocks of a text that were found, in order."""

    places: list[Place]
    failure: tuple[Cid | None, str, Difference | None] | None = None
    """What is wrong with the next block, if it is known and yet cannot be used: the CID, why, by which field."""

    @property
    def load_bytes(self) -> int:
        """Payload of all of them."""
        return sum(each.load_bytes for each in self.places)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a block that exists is not used."""

    reason: str
    cid: Cid | None = None
    difference: Difference | None = None


@dataclass(frozen=True, slots=True)
class Approximation:
    """A block that stands in for the exact one."""

    cid: Cid
    error: float | None
    """As it was measured, in the measure that `reason` names; None where none was taken."""
    reason: str
    load_bytes: int = 0
    tier: Tier = Tier.L0

    @property
    def difference(self) -> Difference:
        """What tells it from an exact block."""
        return Difference("approx", None, self.reason) if self.error is None else Difference("error", 0.0, self.error)
