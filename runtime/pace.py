"""Load or compute: how fast each has been here, and which of the two is chosen for blocks that are known.

The first blocks of a run are always loaded, and what they took decides on the rest: the speed of a disk is not what it
was yesterday, and depends on what is cached. The speed of a prefill is that of the last one that was long enough. The
machine may have been idle then and busy now, which slows both ways, so computing has to promise a clear gain.

>>> pace = Pace(clock_s=lambda: 0.0, prefill_tokens_s=1000.0, probe_bytes=3000)
>>> pace.first_blocks(10, block_bytes=1000), pace.first_blocks(3, block_bytes=1000)
(3, 3)
>>> pace.cheaper_to_compute(7000, tokens=112, loaded_bytes=3000, loaded_s=0.3)
Choice(load_s=0.7, compute_s=0.112)
>>> pace.cheaper_to_compute(7000, tokens=400, loaded_bytes=3000, loaded_s=0.3) is None  # 0.4 s: no clear gain
True
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..cybergraph.verdict import Choice, choose

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

    def cheaper_to_compute(self, load_bytes: int, *, tokens: int, loaded_bytes: int, loaded_s: float) -> Choice | None:
        """Give both estimates where computing what is left promises a clear gain over loading it, else None."""
        if self.prefill_tokens_s is None or loaded_s <= 0:
            return None
        choice = choose(load_bytes, loaded_bytes / loaded_s, tokens=tokens, prefill_tokens_s=self.prefill_tokens_s)
        return choice if choice.load_s > LEAST_GAIN * choice.compute_s else None

    def note_prefill(self, tokens: int, prefill_s: float) -> None:
        """Take the speed of a prefill that was done, if it was long enough to tell."""
        if tokens >= self.least_tokens and prefill_s > 0:
            self.prefill_tokens_s = tokens / prefill_s
