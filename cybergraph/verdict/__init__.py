"""Verdicts: what a lookup of each block of a text answers, why, and what either way costs.

There are six, and exactly one holds for a block (`Verdict`). The plan for a text is a list of them (`plan`), made from
what was found, the measured speeds and the budget; the runtime does what its plan says, and `cyberkv why` shows it.
"""

from .home import find_here, find_refusals, find_unusable, known_models
from .kinds import (
    Approximation,
    BlockVerdict,
    Choice,
    Located,
    Place,
    Rates,
    Refusal,
    Tier,
    Verdict,
    choose,
    deciding_field,
    measured_error,
)
from .planning import plan

__all__ = [
    "Approximation", "BlockVerdict", "Choice", "Located", "Place", "Rates", "Refusal", "Tier", "Verdict",
    "choose", "deciding_field", "find_here", "find_refusals", "find_unusable", "known_models", "measured_error", "plan",
]  # fmt: skip
