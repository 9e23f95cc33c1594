"""Which leaves go first when room is needed: pure functions, so that equal stores choose alike.

>>> places = [Place(SlabId(4, 0), slot, 0) for slot in range(4)]
>>> turns = [turn(each, tick=1, is_wanted=False) for each in places[:3]] + [turn(places[3], tick=9, is_wanted=False)]
>>> [place_of(each).slot for each in choose(sorted(turns), 4096)]
[2, 1, 0]
"""

from collections.abc import Iterable, Iterator
from typing import Final

from ..store.catalog import Place
from ..store.slab import KIB, SlabId

RUN_BYTES: Final = 1 << 20
"""Slots side by side are freed together up to this size: longer runs are not written any faster."""
_WANTED_BIT: Final = 160
_TICK_BIT: Final = 96
_MASK: Final = (1 << 32) - 1


def turn(place: Place, *, tick: int, is_wanted: bool) -> int:
    """Give the turn of a leaf; the lowest goes first.

    Nobody's leaves go before those that a conversation in use has, and a peer too; of either, the longest unused; of
    what was used in one go, the end of a chain, for a chain is written in order and its beginning is what others share.
    One number holds all that, so that a million of them are small and quickly sorted. No two leaves share a turn.
    """
    (slot_kib, number), slot, _ = place
    return is_wanted << _WANTED_BIT | tick << _TICK_BIT | slot_kib << 64 | (_MASK - number) << 32 | (_MASK - slot)


def place_of(turn: int) -> Place:
    """Give the place of a leaf from its turn, without its size."""
    return Place(SlabId(turn >> 64 & _MASK, _MASK - (turn >> 32 & _MASK)), _MASK - (turn & _MASK), 0)


def slot_bytes_of(turn: int) -> int:
    """Give the size of a leaf's slot from its turn."""
    return (turn >> 64 & _MASK) * KIB


def is_wanted(turn: int) -> bool:
    """Say from its turn whether a conversation in use has a leaf."""
    return bool(turn >> _WANTED_BIT)


def choose(turns: Iterable[int], needed_bytes: int, ahead_bytes: int = 0) -> Iterator[int]:
    """Take from the front of sorted turns until the slots amount to `needed_bytes`, then the rest of the run begun.

    Of what nobody wants it is at least `ahead_bytes`: one large commit costs less than many. Everything is taken where
    it does not amount to that.
    """
    taken_bytes = run_bytes = last = 0
    for each in turns:
        joins = each == last + 1  # the slot before, of the same slab and tick
        goal_bytes = needed_bytes if is_wanted(each) else max(needed_bytes, ahead_bytes)
        if taken_bytes >= goal_bytes and not (joins and run_bytes < RUN_BYTES):
            return
        slot_bytes = slot_bytes_of(each)
        taken_bytes += slot_bytes
        run_bytes = run_bytes + slot_bytes if joins else slot_bytes
        last = each
        yield each
