"""Visibility: what may be public is closed under ancestors, whatever was marked, and marks follow the tokens."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cyberkv.cybergraph.access.visibility import NO_MARKS, Marks, digests
from cyberkv.cybergraph.policy import Span, Visibility, dependent, lay, public_prefix, withheld

LENGTH = 8
VISIBILITIES: list[Visibility] = ["private", "public"]
MARKS = st.lists(
    st.builds(
        lambda start, size, visibility: Span(start, start + size, visibility),
        st.integers(0, LENGTH), st.integers(1, LENGTH), st.sampled_from(VISIBILITIES),
    ),
    max_size=8,
)  # fmt: skip
LENGTHS = st.integers(0, LENGTH)
TOKENS = st.lists(st.integers(0, 2), max_size=LENGTH)


def painted(marks: list[Span], length: int) -> list[Visibility]:
    """Say it token by token."""
    tokens: list[Visibility] = ["private"] * length
    for mark in marks:
        for at in range(mark.start, min(mark.end, length)):
            tokens[at] = mark.visibility
    return tokens


@given(MARKS, LENGTHS)
def test_spans_say_the_same_as_tokens(marks: list[Span], length: int) -> None:
    spans = lay(marks, length)
    tokens = painted(marks, length)
    assert [span.visibility for span in spans for _ in range(span.start, span.end)] == tokens
    assert [span.start for span in spans] == [0, *(span.end for span in spans)][: len(spans)]
    assert all(a.visibility != b.visibility for a, b in pairwise(spans))


@given(MARKS, LENGTHS)
def test_what_may_be_public_is_closed_under_ancestors(marks: list[Span], length: int) -> None:
    spans, tokens = lay(marks, length), painted(marks, length)
    publishable = {at for at in range(length) if at < public_prefix(spans)}
    assert publishable == {at for at in range(length) if "private" not in tokens[: at + 1]}
    for at in publishable:
        assert set(range(at)) <= publishable
    held = [at for each in withheld(spans) for at in range(each.start, each.end)]
    assert held == sorted({*range(length)} - publishable)
    waiting = {at for span in dependent(spans) for at in range(span.start, span.end)}
    assert waiting == {at for at in range(length) if tokens[at] == "public"} - publishable
    assert all(str(each.start) for each in withheld(spans) if each.reason != "private")


@given(MARKS, LENGTHS, st.integers(0, LENGTH))
def test_a_beginning_may_show_no_more_than_the_whole(marks: list[Span], length: int, at: int) -> None:
    whole, part = lay(marks, length), lay(marks, min(at, length))
    assert public_prefix(part) == min(public_prefix(whole), at)


def marked(tokens: list[int], spans: list[Span]) -> tuple[Marks, list[Span]]:
    inside = (span for span in spans if span.start < len(tokens))
    used = [Span(span.start, min(span.end, len(tokens)), span.visibility) for span in inside]
    marks = NO_MARKS
    for span in used:
        marks = marks.mark(tokens, *span)
    return marks, used


@given(TOKENS, MARKS, TOKENS)
def test_marks_hold_for_what_begins_with_the_same_tokens(tokens: list[int], spans: list[Span], more: list[int]) -> None:
    marks, used = marked(tokens, spans)
    assert marks.spans(tokens) == (lay(used, len(tokens)) if used else None)
    longer = marks.spans(tokens + more)
    assert longer == (lay(used, len(tokens) + len(more)) if used else None)
    assert Marks.decode(marks.encode()) == marks
    assert marks.clear(tokens) == NO_MARKS


@given(MARKS, LENGTHS)
def test_a_fork_anywhere_keeps_the_visibility_of_every_token(spans: list[Span], at: int) -> None:
    tokens = list(range(LENGTH))
    marks, used = marked(tokens, spans)
    forked = marks.cut(tokens, at).spans([*tokens[:at], 9])  # 9 is in no other text
    if any(span.start < at for span in used):
        assert forked is not None
        assert painted(forked, at) == painted(used, at)
    if used:
        assert marks.cut(tokens, at).spans(tokens) == lay(used, len(tokens)), "the whole is what it was"


@given(TOKENS.filter(bool), TOKENS.filter(bool))
def test_marks_hold_for_no_other_tokens(tokens: list[int], other: list[int]) -> None:
    marks = NO_MARKS.mark(tokens, 0, len(tokens), "private")
    assert (marks.spans(other) is not None) == (other[: len(tokens)] == tokens)


def test_hashes_of_beginnings() -> None:
    found = digests([1, 2, 3], [2, 0, 9, 2])
    assert sorted(found) == [0, 2]
    assert found[2] == digests([1, 2, 4], [2])[2] != digests([12], [1])[1]
