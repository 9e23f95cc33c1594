"""How much a cache of prefixes can save at most, as exact fractions. docs/reuse.md has the tables.

A conversation of `turns` equal turns sends everything again with each: 1 + 2 + … of them. All but the newest was sent
before, so the share that a cache can find is (T - 1) / (T + 1), at any price of the cache:

>>> [str(resent(turns)) for turns in (10, 50, 200)], [percent(resent(turns)) for turns in (10, 50, 200)]
(['9/11', '49/51', '199/201'], ['81.8', '96.1', '99.0'])

Blocks are found whole, so what does not fill one is lost. With turns of whole blocks that is nothing; with turns of 40
tokens and blocks of 16 it is little:

>>> resent_in_blocks(10, 48, 16) == resent(10), percent(resent(10) - resent_in_blocks(10, 40, 16))
(True, '1.8')

If a share of the context is another one in each request, only what comes before it is found:

>>> [percent(edited(resent(200), Fraction(e, 100))) for e in (0, 5, 25, 50, 100)]
['99.0', '94.1', '74.3', '49.5', '0.0']

A cache that looks back a fixed number of blocks from a few marks misses what a turn of many tool calls has put in
between; one that asks for every block does not:

>>> [percent(resent(200) * look_back(20, marks)) for marks in (1, 4)], look_back(80, 4) < 1
(['47.1', '99.0'], True)

Those who start together with the same beginning compute it once, if the first is waited for. That is a figure of the
fleet: no single one of them gets a higher share of its own tokens, so it is never a factor for one:

>>> [percent(fan_out(agents)) for agents in (2, 10, 100)]
['50.0', '90.0', '99.0']

Factors that do bear on one conversation multiply:

>>> [percent(each) for each in compound(resent(200), Fraction(3, 4), look_back(20, 1), Fraction(1, 3))]
['99.0', '74.3', '35.4', '11.8']

What has to move to somebody who has a part is the rest, exactly:

>>> percent(delta(517_983_232, 954_190_848), digits=4)
'54.2851'
"""

from collections.abc import Iterator
from fractions import Fraction
from itertools import accumulate
from operator import mul
from typing import Final

LOOK_BACK_BLOCKS: Final = 20
"""Of hosted prompt caches: content blocks that are looked at before a mark."""


def resent(turns: int) -> Fraction:
    """Give the share of a conversation's tokens that were sent before, in turns of equal length."""
    return Fraction(turns - 1, turns + 1)


def resent_in_blocks(turns: int, turn_tokens: int, block_size: int) -> Fraction:
    """Give the share of `resent` that whole blocks hold."""
    found = sum(turn * turn_tokens // block_size * block_size for turn in range(turns))
    return Fraction(found, turn_tokens * turns * (turns + 1) // 2)


def edited(ceiling: Fraction, share: Fraction) -> Fraction:
    """Give what is left of a ceiling where a `share` of the context, up to its end, is new in each request."""
    return (1 - share) * ceiling


def look_back(calls: int, marks: int, *, window_blocks: int = LOOK_BACK_BLOCKS) -> Fraction:
    """Give the share that a cache finds which looks back `window_blocks` from each of some `marks`.

    A turn with tool calls adds two blocks a call and two of its own.
    """
    return min(Fraction(1), Fraction(marks * window_blocks, 2 * calls + 2))


def fan_out(agents: int) -> Fraction:
    """Give the share of equal beginnings that need not be computed, of so many that start together."""
    return Fraction(agents - 1, agents)


def compound(*factors: Fraction) -> Iterator[Fraction]:
    """Give the running product."""
    return accumulate(factors, mul)


def delta(missing_bytes: int, whole_bytes: int) -> Fraction:
    """Give the share of a conversation that has to move."""
    return Fraction(missing_bytes, whole_bytes)


def percent(share: Fraction, *, digits: int = 1) -> str:
    """Write a share as a percentage, rounded half up: the same digits everywhere."""
    scaled = (share * 100 * 10**digits + Fraction(1, 2)).__floor__()
    return f"{scaled // 10**digits}.{scaled % 10**digits:0{digits}d}"
