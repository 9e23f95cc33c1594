"""Spans of a conversation by id and name, never by offset: offsets move when something before them goes.

>>> ledger = Ledger().add("system", 0, 3).add("tool", 3, 8).add("answer", 8, 10)
>>> [(span.name, span.start, span.end) for span in ledger.without(Cut(3, 8)).spans]
[('system', 0, 3), ('answer', 3, 5)]
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Final

from ...cybergraph.access.visibility import DIGEST_BYTES, digests
from ...cybergraph.errors import BadReference, LimitExceeded, NameNotFound, OutOfRange
from ...cybergraph.index.marks import MAX_NAME_BYTES, encode_name
from ...cybergraph.nodes.base import Nested, Node, Record
from ...cybergraph.nodes.kinds import Bytes, Listing, Text, Uint
from .receipt import Cut

MAX_SPANS: Final = 4096
"""Spans of one home."""


@dataclass(frozen=True, slots=True)
class Span(Record):
    """Named tokens of a conversation."""

    id: Annotated[int, Uint(least=1)]
    """Given once, and never to another span."""
    name: Annotated[str, Text(MAX_NAME_BYTES)]
    start: Annotated[int, Uint()]
    end: Annotated[int, Uint()]
    branch: Annotated[str, Text(MAX_NAME_BYTES)]
    """Empty; or the conversation that holds the span, which was forked off at `start` and never read here."""

    @property
    def cut(self) -> Cut:
        """Where the span stands."""
        return Cut(self.start, self.end)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The spans of one conversation, in the order in which they stand."""

    spans: tuple[Span, ...] = ()
    last_id: int = 0
    """The highest id given so far, in any conversation of the home."""

    def add(self, name: str, start: int, end: int, *, branch: str = "") -> "Ledger":
        """Name a span; one of a `branch` is empty here. Raises `BadReference`, `OutOfRange`."""
        encode_name(name)
        if ":" in name or name.isdigit():
            raise BadReference(f"{name!r:.80} reads as a range or an id", hint="choose a name such as tool-2")
        if any(span.name == name for span in self.spans):
            raise BadReference(f"there is a span {name!r:.80} already", hint="choose another name", name=name)
        if not (0 <= start < end or (branch and 0 <= start == end)):
            raise OutOfRange(f"no tokens in {start}:{end}", hint="START:END, END not included", start=start, end=end)
        span = Span(self.last_id + 1, name, start, end, branch)
        return Ledger(_in_order([*self.spans, span]), span.id)

    def find(self, ref: str) -> Span:
        """Give the span with this id or name. Raises `NameNotFound`."""
        for span in self.spans:
            if ref in (span.name, str(span.id)):
                return span
        known = ", ".join(span.name for span in self.spans)
        there = f"there are: {known}" if known else "none has a name"
        raise NameNotFound(f"no span {ref!r:.80}; {there}", hint="`--name NAME` names one", ref=ref[:80])

    def without(self, cut: Cut) -> "Ledger":
        """Take tokens out: what stood behind them moves forward, what is left of a span stays, an empty one goes."""
        moved = [replace(span, start=cut.moved(span.start), end=cut.moved(span.end)) for span in self.spans]
        return replace(self, spans=_in_order(span for span in moved if span.branch or span.start < span.end))

    def closed(self, span_id: int) -> "Ledger":
        """Take one span out of the ledger; the tokens stay."""
        return replace(self, spans=tuple(span for span in self.spans if span.id != span_id))


def _in_order(spans: Iterable[Span]) -> tuple[Span, ...]:
    return tuple(sorted(spans, key=lambda span: (span.start, span.end, span.id)))


@dataclass(frozen=True, slots=True)
class Entry(Record):
    """One span of the conversations that begin with certain tokens."""

    span: Annotated[Span, Nested(Span)]
    tokens: Annotated[bytes, Bytes(DIGEST_BYTES)]
    """Hash of all tokens before its end."""


@dataclass(frozen=True, slots=True)
class SpanBook(Node):
    """All spans of a home.

    Like a mark, a span names no root: it holds for every conversation that begins with the same tokens up to its end.
    So a fork has the spans of what it was forked from, a conversation keeps them while it grows, and an old root that
    is taken up again has those it had.
    """

    last_id: Annotated[int, Uint()]
    entries: Annotated[tuple[Entry, ...], Listing(Nested(Entry), MAX_SPANS)]

    TYPE: ClassVar = "cyberkv/spans"

    def ledger(self, tokens: Sequence[int]) -> Ledger:
        """Give the spans of a conversation."""
        return Ledger(_in_order(entry.span for entry in self._holding(tokens)), self.last_id)

    def with_ledger(self, tokens: Sequence[int], ledger: Ledger) -> "SpanBook":
        """Put the spans of a conversation in place of those it had. Raises `LimitExceeded`."""
        holding = self._holding(tokens)
        known = digests(tokens, (span.end for span in ledger.spans))
        entries = [entry for entry in self.entries if entry not in holding]
        entries += [Entry(span, known[span.end]) for span in ledger.spans]
        if len(entries) > MAX_SPANS:
            raise LimitExceeded(f"more than {MAX_SPANS} named spans", hint="`evict --forget` lets old ones go")
        return SpanBook(max(self.last_id, ledger.last_id), tuple(entries))

    def forget(self, old: Sequence[int], stay: Iterable[Sequence[int]]) -> "SpanBook":
        """Let the spans go that hold for `old`, and for none of the conversations that stay."""
        gone = self._holding(old)
        for tokens in stay if gone else ():
            stays = self._holding(tokens)
            gone = [entry for entry in gone if entry not in stays]
        return replace(self, entries=tuple(entry for entry in self.entries if entry not in gone))

    def _holding(self, tokens: Sequence[int]) -> list[Entry]:
        """List the entries that hold; of a span that was cut and stands here whole, the whole one alone."""
        known = digests(tokens, (entry.span.end for entry in self.entries))
        holding = [entry for entry in self.entries if known.get(entry.span.end) == entry.tokens]
        longest = {entry.span.id: entry for entry in sorted(holding, key=lambda entry: entry.span.end)}
        return [entry for entry in holding if longest[entry.span.id] == entry]


NO_SPANS: Final = SpanBook(0, ())
