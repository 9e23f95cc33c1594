"""Which blocks of a conversation are looked at, where it is longer than the positions of its model.

A policy is a pure function of the token windows, the next tokens and a budget. Exact attention over everything ends
where the model's positions end; what a selection leaves out is left out of the answer, so what comes of it is marked
approximate, with the policy's name.

>>> windows = [(1, 2), (3, 4), (5, 6), (7, 8), (9, 9)]
>>> select(RECENT, windows, (3,), 3)
[0, 3, 4]
>>> select(SIMILAR, windows, (3,), 3)
[0, 1, 4]
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ..cybergraph.errors import Refused

Windows = Sequence[Sequence[int]]
"""The tokens of each full block, in order."""
Choose = Callable[[Windows, Sequence[int], int], Iterable[int]]
"""Chooses at most so many of the windows for the next tokens, by index."""
Score = Callable[[Windows, Sequence[int]], Sequence[float]]
"""Says how much each window has to do with the next tokens: of shared tokens, of embeddings, of anything."""
Coldness = Callable[[int, int], float]
"""Says how far a block is from being used, given its index and that of the block that is being made."""

SINK_BLOCKS: Final = 1
"""Kept from the start: models put weight on their first tokens whatever these say."""
NEWEST_PART: Final = 4
"""One in so many blocks of a budget is for the newest, whatever they score."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A way to choose, and the name under which its results are marked."""

    name: str
    choose: Choose


def select(policy: Policy, windows: Windows, following: Sequence[int], budget_blocks: int) -> list[int]:
    """Choose blocks for the `following` tokens, in order. The newest block is always one of them.

    Raises `Refused` for a policy that goes over its budget, names what there is not, or leaves the newest out: what
    comes next hangs on that one.
    """
    if len(windows) <= budget_blocks:
        return list(range(len(windows)))
    chosen = sorted({*policy.choose(windows, following, budget_blocks)})
    if not chosen or chosen[0] < 0 or chosen[-1] != len(windows) - 1 or len(chosen) > budget_blocks:
        raise Refused(
            f"policy {policy.name} chose {len(chosen)} of {len(windows)} blocks, from {chosen[:1]} to {chosen[-1:]}",
            hint=f"it may choose {budget_blocks}, the newest among them",
            policy=policy.name, budget_blocks=budget_blocks, chosen=len(chosen),
        )  # fmt: skip
    return chosen


def recent(windows: Windows, following: Sequence[int], budget_blocks: int) -> list[int]:  # noqa: ARG001
    """Choose the first block and the newest ones."""
    sinks = min(SINK_BLOCKS, budget_blocks - 1)
    return [*range(sinks), *range(len(windows) - budget_blocks + sinks, len(windows))]


def best(score: Score) -> Choose:
    """Make a policy of a score: the first block, a quarter for the newest, the best of the others; ties go to later."""

    def choose(windows: Windows, following: Sequence[int], budget_blocks: int) -> list[int]:
        newest = max(1, budget_blocks // NEWEST_PART)
        sinks = min(SINK_BLOCKS, budget_blocks - newest)
        scores = score(windows, following)
        middle = range(sinks, len(windows) - newest)
        ranked = sorted(middle, key=lambda block: (scores[block], block), reverse=True)
        chosen = ranked[: budget_blocks - newest - sinks]
        return [*range(sinks), *chosen, *range(len(windows) - newest, len(windows))]

    return choose


def shared_tokens(windows: Windows, following: Sequence[int]) -> list[float]:
    """Score by the different tokens that a window shares with the next ones; rare tokens weigh more."""
    wanted = {*following}
    shared = [wanted.intersection(window) for window in windows]
    windows_with = Counter(token for tokens in shared for token in tokens)
    return [sum(1 / windows_with[token] for token in sorted(tokens)) for tokens in shared]


RECENT: Final = Policy("recent", recent)
SIMILAR: Final = Policy("similar", best(shared_tokens))
POLICIES: Final = {policy.name: policy for policy in (RECENT, SIMILAR)}


def distance(block: int, at: int) -> float:
    """Say how far a block is from where the work is, by the page table alone: no look into attention is needed."""
    return abs(at - block)


def coldest_first(
    blocks: Iterable[int], at: int, pinned: Container[int], coldness: Coldness = distance
) -> list[int]:  # fmt: skip
    """Order blocks for eviction. What is `pinned` is not among them, however cold it is.

    >>> coldest_first([0, 3, 7, 8], 9, pinned={0})
    [3, 7, 8]
    """
    return sorted((block for block in blocks if block not in pinned), key=lambda block: (-coldness(block, at), block))
