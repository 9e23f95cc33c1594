"""A request on its way.

Every change of state is one assignment, and what follows from the conversation's length is not kept but worked out: a
step that is interrupted anywhere leaves a state that the next one can go on from.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from ...cybergraph.prefix import PrefixKey
from ..live import Live
from ..reuse import Counts
from .parking import Parked
from .request import Finish, Listener, Outcome, Request


@dataclass(slots=True)
class Running:
    """A conversation with rows in the pool."""

    live: Live
    goal: list[int]
    """What the conversation's tokens have to be before one is chosen."""
    prefixes: list[PrefixKey]
    """Of the full blocks of `goal`."""
    looked_up: bool = False
    """Whether blocks that exist were taken since somebody else may have made some."""

    @property
    def pending(self) -> list[int]:
        """Tokens that have to be computed before one is chosen."""
        return self.goal[len(self.live.tokens) :]

    @property
    def missing(self) -> list[PrefixKey]:
        """Prefix keys of the full blocks of what is pending."""
        return self.prefixes[len(self.live.blocks) :]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A conversation out of the pool."""

    parked: Parked
    goal: list[int]


@dataclass(frozen=True, slots=True)
class Leaving:
    """A conversation on its way out of the pool: its rows are still to be given back."""

    live: Live
    then: Waiting


class Said(NamedTuple):
    """What was chosen."""

    tokens: tuple[int, ...] = ()
    at_length: int | None = None
    """Length of the conversation at which the last of it comes next."""
    ended: bool = False
    """Whether the last one ends the answer: it is still recorded."""


@dataclass(slots=True, eq=False)
class Job:
    """One request and where it stands."""

    number: int
    request: Request
    listener: Listener
    place: Running | Waiting | Leaving | None = None
    """None: not begun, or ended."""
    said: Said = field(default=Said())
    delivered: int = 0
    """Chosen tokens that the listener was told of."""
    preempted: int = 0
    outcome: Outcome | None = None
    told: bool = False
    """Whether the listener was told of the outcome."""

    @property
    def length(self) -> int:
        """Tokens that are to be in the pool before one is chosen, as far as is known."""
        if isinstance(self.place, Running):
            return max(len(self.place.goal), len(self.place.live.tokens))
        return len(self.place.goal if isinstance(self.place, Waiting) else self.request.tokens)

    @property
    def left(self) -> int:
        """Tokens that may still be chosen."""
        return 0 if self.said.ended else self.request.max_tokens - len(self.said.tokens)

    def comes_next(self, length: int) -> bool:
        """Whether the last chosen token stands at position `length`."""
        return self.said.at_length == length

    def cut(self, chosen: list[int]) -> tuple[list[int], bool]:
        """Cut what was chosen behind the first token that ends the answer. Says whether that is a part of it."""
        for i, token in enumerate(chosen):
            if token in self.request.stop:
                return chosen[: i + 1], False
            if self.request.ends and self.request.ends(token):
                return chosen[: i + 1], True
        return chosen, False

    def say(self, chosen: list[int], length: int, *, ended: bool) -> Finish | None:
        """Take what `cut` gave after a conversation of `length` tokens. Says whether the request ends here."""
        if chosen[-1] in self.request.stop:
            self.said = Said((*self.said.tokens, *chosen[:-1]))
            return Finish.STOP
        self.said = Said((*self.said.tokens, *chosen), length, ended)
        return None

    def deliver(self) -> None:
        """Tell the listener of tokens it does not know yet."""
        while self.delivered < len(self.said.tokens):
            self.delivered += 1
            self.listener(self.said.tokens[self.delivered - 1])

    def end(self, finish: Finish, *, kept: object = None, error: Exception | None = None) -> None:
        """Set the outcome, once."""
        if self.outcome is None:
            place = self.place.then if isinstance(self.place, Leaving) else self.place
            held = place.live if isinstance(place, Running) else place.parked if place else None
            counts, length = (held.counts, len(held.tokens)) if held else (Counts(), 0)
            self.outcome = Outcome(finish, self.said.tokens, length, counts, kept, error, self.preempted)
