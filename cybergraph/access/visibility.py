"""Marks: what somebody said of spans of a conversation. They stay in the home, in one private file.

A mark names no conversation. It holds a hash of all tokens up to its end, and so for every conversation that begins
with these tokens, under whatever name or root: a fork has the marks of what it was forked from, and another text under
an old name has none.
"""

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Annotated, ClassVar, Final

from ..errors import LimitExceeded, OutOfRange
from ..nodes.base import Nested, Node, Record
from ..nodes.kinds import Bytes, Listing, Text, Uint
from ..policy import Span, Visibility, lay

DIGEST_BYTES: Final = 32
MAX_MARKS: Final = 4096
"""Marks of one home: a file of half a megabyte."""


@dataclass(frozen=True, slots=True)
class Mark(Record):
    """One span of the conversations that begin with certain tokens."""

    start: Annotated[int, Uint()]
    end: Annotated[int, Uint(least=1)]
    visibility: Annotated[Visibility, Text(choices=("private", "public"))]
    tokens: Annotated[bytes, Bytes(DIGEST_BYTES)]
    """Hash of all tokens before `end`."""


@dataclass(frozen=True, slots=True)
class Marks(Node):
    """All marks of a home, in the order in which they were made."""

    marks: Annotated[tuple[Mark, ...], Listing(Nested(Mark), MAX_MARKS)]

    TYPE: ClassVar = "cyberkv/marks"

    def spans(self, tokens: Sequence[int]) -> list[Span] | None:
        """Give the spans of a conversation, as `policy.lay` does, or None if no mark holds for it."""
        holding = self._holding(tokens)
        if not holding:
            return None
        return lay((Span(mark.start, mark.end, mark.visibility) for mark in holding), len(tokens))

    def mark(self, tokens: Sequence[int], start: int, end: int, visibility: Visibility) -> "Marks":
        """Mark tokens from `start` up to `end`, over what was marked there before.

        A private mark that ends before `end` stays under the new one: for a conversation that ends there, such as a
        fork, it may be all that says so. Raises `OutOfRange` for a span that is empty or beyond the end,
        `LimitExceeded` for too many marks.
        """
        if not 0 <= start < end <= len(tokens):
            raise OutOfRange(
                f"no span {start}:{end} in {len(tokens)} tokens", hint="START:END, END not included",
                start=start, end=end, tokens=len(tokens),
            )  # fmt: skip
        covered = {
            mark for mark in self._holding(tokens)
            if start <= mark.start and mark.end <= end and (mark.end == end or mark.visibility == "public")
        }  # fmt: skip
        new = Mark(start, end, visibility, digests(tokens, [end])[end])
        return _bounded([*(mark for mark in self.marks if mark not in covered), new])

    def private(self, tokens: Sequence[int], start: int, end: int) -> list[Span]:
        """List what was said to be private from `start` up to `end`, not what is private for lack of a mark.

        Spans are whole: they may begin before and end behind.
        """
        holding = self._holding(tokens)
        said = [Span(mark.start, mark.end, mark.visibility) for mark in holding]
        # Over a ground of public tokens, what is private was said to be.
        laid = lay([Span(0, len(tokens), "public"), *said], len(tokens))
        return [span for span in laid if span.visibility == "private" and span.start < end and start < span.end]

    def clear(self, tokens: Sequence[int]) -> "Marks":
        """Remove every mark that holds for a conversation."""
        holding = {*self._holding(tokens)}
        return replace(self, marks=tuple(mark for mark in self.marks if mark not in holding))

    def cut(self, tokens: Sequence[int], at: int) -> "Marks":
        """Add marks for the first `at` tokens, so that what is cut off inside a span keeps its visibility there.

        Each stands behind the one that it was cut from, and so changes nothing for the whole. What is said to be
        private of just these tokens already stays so, whatever has become of the whole since. Raises as `mark`.
        """
        cutting = {mark for mark in self._holding(tokens) if mark.start < at < mark.end}
        digest = digests(tokens, [at])[at]
        private = [mark for mark in self.marks if mark.tokens == digest and mark.visibility == "private"]
        marks: list[Mark] = []
        for mark, following in zip_longest(self.marks, self.marks[1:]):
            marks.append(mark)
            part = replace(mark, end=at, tokens=digest)
            opens = part.visibility == "public" and any(mark.start < each.end for each in private)
            if mark in cutting and part != following and not opens:
                marks.append(part)
        return _bounded(marks)

    def _holding(self, tokens: Sequence[int]) -> list[Mark]:
        known = digests(tokens, (mark.end for mark in self.marks))
        return [mark for mark in self.marks if known.get(mark.end) == mark.tokens]


NO_MARKS: Final = Marks(())


def _bounded(marks: list[Mark]) -> Marks:
    if len(marks) > MAX_MARKS:
        raise LimitExceeded(f"more than {MAX_MARKS} marks", hint="`cyberkv mark REF --clear` removes some")
    return Marks(tuple(marks))


def digests(tokens: Sequence[int], ends: Iterable[int]) -> dict[int, bytes]:
    """Hash the beginnings of `tokens` that have these lengths, in one pass; longer ones are left out."""
    hashed, done, found = hashlib.sha256(b"cyberkv/mark/v1"), 0, {}
    for end in sorted({end for end in ends if end <= len(tokens)}):
        hashed.update(array("Q", tokens[done:end]).tobytes())
        done, found[end] = end, hashed.digest()
    return found
