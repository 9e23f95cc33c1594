"""What goes first when a tier needs room, and where it goes. Pure functions: no clock, and ties have an order.

>>> first_used, used_last = Standing(refs=0, hot=False, used=3, rebuild=0, stamp=1), Standing(0, False, 9, 0, 2)
>>> in_use, decoding = Standing(refs=1, hot=False, used=1, rebuild=0, stamp=3), Standing(0, True, 2, 0, 4)
>>> [each.stamp for each in sorted([in_use, decoding, used_last, first_used], key=eviction_key)]
[1, 2, 4, 3]
>>> disposal(dirty=False, reproducible=False, hot=True)
Disposal(action=<Action.KEEP: 'keep'>, later=True)
"""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Standing:
    """What decides when a block's turn comes."""

    refs: int
    """Users. A block in use is never evicted; it counts so that orders are total."""
    hot: bool
    """Used in the last decode steps: expected to be used again soonest."""
    used: int
    """Tick of the last use. What was used longest ago is expected to be used last."""
    rebuild: int
    """What it takes to have it again: 0 where the store has it, 1 where a peer has it, 2 where it would be computed."""
    stamp: int
    """Count of insertions: no two are equal."""


def eviction_key(each: Standing) -> tuple[int, tuple[bool, int], int, int]:
    """Order of eviction: users, then distance to the next use, the furthest first, then the cost to rebuild.

    Among equals the newest goes first: blocks of one run come in order, and its beginning is what others share.
    """
    return each.refs, (each.hot, each.used), each.rebuild, -each.stamp


class Action(StrEnum):
    """What becomes of a block that leaves memory."""

    STORE = "store"
    """Written to L2, then dropped."""
    DROP = "drop"
    KEEP = "keep"
    """Stays: no other copy is known, and nothing shows that it could be made again."""


@dataclass(frozen=True, slots=True)
class Disposal:
    """What becomes of a block, and when its turn is."""

    action: Action
    later: bool
    """After all that are not hot."""


def disposal(*, dirty: bool, reproducible: bool, hot: bool) -> Disposal:
    """Decide about one block: dirty goes to L2; clean and reproducible is dropped; clean and not reproducible is kept.

    `dirty`: the store is not known to have it, and may. `reproducible`: the store or a peer has it, as far as a
    verified read has shown, or it was computed again with the same CID.
    """
    action = Action.STORE if dirty else Action.DROP if reproducible else Action.KEEP
    return Disposal(action, later=hot)
