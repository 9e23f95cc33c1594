"""Load or compute: how fast each has been here, and which of the two is chosen for blocks that are known.

The first blocks of a run are always loaded, and what they took decides on the rest: the speed of a disk is not what it
was yesterday, and depends on what is cached. The speed of a prefill is that of the last one that was long enough. The
machine may have been idle then and busy now, which slows both ways, so computing has to promise a clear gain.

>>> pace = Pace(clock_s=lambda: 0.0, prefill_tokens_s=1000.0, probe_bytes=3000)
>>> pace.first_blocks(10, block_bytes=1000), pace.first_blocks(3, block_bytes=1000)
(3, 3)
>>> pace.rates(loaded_bytes=3000, loaded_s=0.3).load_s(Tier.L2, 7000)
0.7
>>> pace.rates().load_s(Tier.L2, 7000) is None
True
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..cybergraph.verdict import Rates, Tier

PROBE_BYTES: Final = 8 << 20
"""Loaded without asking, to see how fast it goes: many reads long, and soon computed if it was in vain."""
LEAST_GAIN: Final = 2
"""Computing is chosen where loading would take more than this times as long."""
LEAST_TOKENS: Final = 256
"""A shorter prefill says little about a long one."""


def _still() -> float:
    return 0.0


@dataclass(slots=True)
class Pace:
    """What loading and computing take on this machine, for one model. Not safe for use by several threads."""

    clock_s: Callable[[], float] = _still
    """Seconds on a clock that only runs forward. Where it stands still, nothing is measured and everything loaded."""
    prefill_tokens_s: float | None = None
    """Speed of the last long prefill; None where there was none: then everything known is loaded."""
    probe_bytes: int = PROBE_BYTES
    least_tokens: int = LEAST_TOKENS

    def first_blocks(self, blocks: int, block_bytes: int) -> int:
        """Say how many of a run of known blocks are loaded before the rest is weighed."""
        if self.prefill_tokens_s is None:
            return blocks
        return min(blocks, max(1, self.probe_bytes // block_bytes))

    def rates(self, *, loaded_bytes: int = 0, loaded_s: float = 0.0) -> Rates:
        """Give the speeds for a plan: of a prefill, and of loading as it went just now, if anything was loaded."""
        if self.prefill_tokens_s is None or not loaded_bytes or loaded_s <= 0:
            return Rates(self.prefill_tokens_s)
        lower = dict.fromkeys((Tier.L1, Tier.L2, Tier.L3), loaded_bytes / loaded_s)
        return Rates(self.prefill_tokens_s, lower, least_gain=LEAST_GAIN)

    def note_prefill(self, tokens: int, prefill_s: float) -> None:
        """Take the speed of a prefill that was done, if it was long enough to tell."""
        if tokens >= self.least_tokens and prefill_s > 0:
            self.prefill_tokens_s = tokens / prefill_s
