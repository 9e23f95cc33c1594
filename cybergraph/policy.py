"""What of a conversation may be public: spans of tokens that somebody marked, and what follows from them.

K and V of a token hold everything before it: the first public token after a private one gives the private one away. So
the effective visibility of a token is the most restrictive of all tokens up to it, and what may be public is always a
prefix. Pure functions over spans.

>>> spans = lay([Span(0, 8, "public"), Span(4, 6, "private")], 10)
>>> [(span.start, span.end, span.visibility) for span in spans]
[(0, 4, 'public'), (4, 6, 'private'), (6, 8, 'public'), (8, 10, 'private')]
>>> public_prefix(spans)
4
>>> [(held.start, held.end, held.reason) for held in withheld(spans)]
[(4, 6, 'private'), (6, 8, 'depends on private span 4:6'), (8, 10, 'private')]
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

Visibility = Literal["private", "public"]


class Span(NamedTuple):
    """Tokens from `start` up to and without `end`."""

    start: int
    end: int
    visibility: Visibility

    def __str__(self) -> str:
        return f"{self.start}:{self.end}"


class HeldSpan(NamedTuple):
    """Tokens that stay here, and why."""

    start: int
    end: int
    reason: str


def lay(marks: Iterable[Span], length: int) -> list[Span]:
    """Lay marks over `length` tokens, later ones over earlier ones; what no mark covers is private.

    Gives spans that cover all tokens, in order, neighbours of different visibility.
    """
    placed = [mark for mark in marks if mark.start < min(mark.end, length)]
    cuts = sorted({0, length, *(at for mark in placed for at in (mark.start, mark.end) if at < length)})
    spans: list[Span] = []
    for start, end in pairwise(cuts):
        over = (mark.visibility for mark in reversed(placed) if mark.start <= start < mark.end)
        visibility: Visibility = next(over, "private")
        if spans and spans[-1].visibility == visibility:
            start = spans.pop().start
        spans.append(Span(start, end, visibility))
    return spans


def public_prefix(spans: Sequence[Span]) -> int:
    """Count the tokens that may be public: those before the first private one. Takes what `lay` gives."""
    return spans[0].end if spans and spans[0].visibility == "public" else 0


def withheld(spans: Sequence[Span]) -> list[HeldSpan]:
    """List what stays here: private spans, and public ones that come after the first of them."""
    private, held = None, []
    for span in spans:
        if span.visibility == "private":
            private = private or span
            held.append(HeldSpan(span.start, span.end, "private"))
        elif private is not None:
            held.append(HeldSpan(span.start, span.end, f"depends on private span {private}"))
    return held


def dependent(spans: Sequence[Span]) -> list[Span]:
    """List the public spans that cannot be published as they are, because a private one comes before."""
    return [span for span in spans if span.visibility == "public" and span.start > 0]
