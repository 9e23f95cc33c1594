"""Drafts: tokens that may come next, guessed without the model, to be checked several at a time.

>>> lookup = PromptLookup(longest=3, most=4)
>>> lookup([1, 2, 3, 4, 5, 9, 1, 2, 3])
[4, 5, 9, 1]
>>> lookup([1, 2, 3])
[]
"""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from typing import Protocol


class Drafter(Protocol):
    """Guesses what comes next. A wrong guess costs time and changes nothing else."""

    def __call__(self, tokens: Tokens[int], /) -> list[int]:
        """Give tokens that may follow `tokens`, or none."""


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """Guess that what followed the last few tokens earlier in the conversation follows again."""

    longest: int = 4
    """Tokens that are looked for, at first; fewer where they were not seen before."""
    shortest: int = 2
    most: int = 15
    """Tokens to guess at most: with the one that is certain they fill the 16 rows of a canonical step."""
    reach_tokens: int = 4096
    """How far back to look."""

    def __call__(self, tokens: Tokens[int], /) -> list[int]:
        """See `Drafter`. The latest match of the longest run is taken."""
        seen = list(tokens[-self.reach_tokens :])
        for length in range(min(self.longest, len(seen) - 1), self.shortest - 1, -1):
            ending = seen[-length:]
            for at in range(len(seen) - length - 1, -1, -1):
                if seen[at] == ending[0] and seen[at : at + length] == ending:
                    return seen[at + length : at + length + self.most]
        return []
