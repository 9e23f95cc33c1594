"""The ledger of spans against a plain list of labelled tokens, gates against content, and what a home keeps of both."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import BadReference, Corrupt, LimitExceeded, NameNotFound, OutOfRange
from cyberkv.runtime.edits.folder import Edit, EditsFolder
from cyberkv.runtime.edits.gates import Gate, PatternGate, Verdict, Verdicts, digest_of
from cyberkv.runtime.edits.receipt import Cut, EditReceipt
from cyberkv.runtime.edits.spans import MAX_SPANS, NO_SPANS, Entry, Ledger, Span, SpanBook

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=8)
RECEIPT = EditReceipt("exact", True, 4, 3, 2, 1, ("published as x",), "f32-0123")
OLD, NEW = (Cid.of(name, "dag-cbor", "sha2-256") for name in (b"old", b"new"))


def laid(lengths: Sequence[int]) -> Ledger:
    """Segments one after the other, named a, b, c, …"""
    ledger, ends = Ledger(), list(itertools.accumulate(lengths))
    for name, start, end in zip("abcdefgh", [0, *ends], ends, strict=False):
        ledger = ledger.add(name, start, end)
    return ledger


def test_a_span_behind_an_evicted_one_is_found_where_it_now_stands() -> None:
    ledger = laid([3, 5, 2, 4])
    ledger = ledger.without(ledger.find("b").cut)
    assert ledger.find("c").cut == Cut(3, 5)
    assert ledger.find("3").name == "c"  # by id
    ledger = ledger.without(ledger.find("c").cut)
    assert ledger.find("d").cut == Cut(3, 7)
    assert [(span.id, span.name) for span in ledger.spans] == [(1, "a"), (4, "d")]


@given(lengths=LENGTHS, data=st.data(), partial=st.booleans())
def test_after_any_evictions_each_span_has_its_own_tokens(
    lengths: list[int], data: st.DataObject, partial: bool
) -> None:
    ledger = laid(lengths)
    tokens = [(name, at) for name, size in zip("abcdefgh", lengths, strict=False) for at in range(size)]
    names = data.draw(st.permutations([span.name for span in ledger.spans]))
    for name in names[: len(names) // 2 + 1]:
        cut = ledger.find(name).cut
        if partial and cut.end - cut.start > 1:
            cut = Cut(cut.start + 1, cut.end)
        del tokens[cut.start : cut.end]
        ledger = ledger.without(cut)
        for span in ledger.spans:
            assert {owner for owner, _ in tokens[span.start : span.end]} == {span.name}
            assert span.end - span.start == sum(owner == span.name for owner, _ in tokens)
    assert {span.name for span in ledger.spans} == {owner for owner, _ in tokens}


@given(lengths=LENGTHS, edges=st.tuples(st.integers(0, 70), st.integers(0, 70)))
def test_any_cut_takes_from_each_span_what_it_has_of_it(lengths: list[int], edges: tuple[int, int]) -> None:
    ledger, cut = laid(lengths), Cut(*sorted(edges))
    owners = [name for name, size in zip("abcdefgh", lengths, strict=False) for _ in range(size)]
    del owners[cut.start : cut.end]
    left = {span.name: span.cut for span in ledger.without(cut).spans}
    assert left == {name: Cut(owners.index(name), owners.index(name) + owners.count(name)) for name in {*owners}}


def test_ids_are_given_once() -> None:
    ledger = laid([2, 2]).without(Cut(2, 4))
    assert ledger.add("c", 0, 1).find("c").id == 3
    assert ledger.closed(1).spans == ()


@pytest.mark.parametrize(
    ("name", "start", "end", "error"),
    [
        ("a", 0, 1, BadReference), ("1:2", 0, 1, BadReference), ("12", 0, 1, BadReference), ("", 0, 1, BadReference),
        ("x/y", 0, 1, BadReference), ("x", 1, 1, OutOfRange), ("x", 2, 1, OutOfRange), ("x", -1, 1, OutOfRange),
    ],
)  # fmt: skip
def test_names_and_ranges_that_cannot_be(name: str, start: int, end: int, error: type[Exception]) -> None:
    ledger = laid([2, 2])
    with pytest.raises(error):
        ledger.add(name, start, end)
    with pytest.raises(NameNotFound):
        ledger.find("z")


def test_a_branch_stands_at_a_point_and_moves_with_it() -> None:
    ledger = laid([4, 4]).add("side", 8, 8, branch="story-side")
    assert ledger.without(Cut(1, 3)).find("side").cut == Cut(6, 6)
    assert ledger.without(Cut(0, 8)).find("side").cut == Cut(0, 0)


def test_spans_hold_for_what_begins_with_the_same_tokens() -> None:
    tokens = [7, 8, 9, 10, 11, 12]
    book = NO_SPANS.with_ledger(tokens[:4], laid([2, 2]))
    assert [span.name for span in book.ledger(tokens).spans] == ["a", "b"]  # it has grown
    assert [span.name for span in book.ledger(tokens[:3]).spans] == ["a"]  # a fork
    assert book.ledger([0, *tokens[1:]]).spans == ()
    after = tokens[:1] + tokens[3:]
    edited = book.with_ledger(after, book.ledger(tokens).without(Cut(1, 3)))
    assert [(span.id, span.cut) for span in edited.ledger(after).spans] == [(1, Cut(0, 1)), (2, Cut(1, 2))]
    assert edited.ledger(tokens) == book.ledger(tokens)  # the way back
    assert edited.forget(tokens, [after, tokens]) == edited  # a fork stays
    forgotten = edited.forget(tokens, [after])
    assert [(span.id, span.cut) for span in forgotten.ledger(tokens).spans] == [(1, Cut(0, 1))]  # what both begin with
    assert forgotten.ledger(after) == edited.ledger(after)
    assert forgotten.ledger(tokens).last_id == 2


def test_there_is_a_most_number_of_spans() -> None:
    entries = tuple(Entry(Span(at + 1, f"s{at}", 0, 1, ""), bytes(32)) for at in range(MAX_SPANS))
    book = SpanBook(MAX_SPANS, entries)
    with pytest.raises(LimitExceeded):
        book.with_ledger([1], Ledger(last_id=MAX_SPANS).add("one", 0, 1))


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_gate_decides_on_what_is_said_and_not_on_where(tmp_path: Path) -> None:
    gate: Gate = PatternGate.from_file(write(tmp_path / "list", "# not this\n\nIgnore All Previous\nsecret key\n"))
    bad, good = list(b"please ignore all previous"), list(b"please ignore no previous!")
    assert len(bad) == len(good)
    verdict = gate(bad, bytes(bad).decode(), digest_of(bad))  # where it stands is not even told
    assert verdict.evict
    assert verdict.digest == digest_of(bad) != digest_of(good)
    assert verdict.reason == "holds text 1 of the list"  # and not what it says: a verdict outlives the span
    assert not gate(good, bytes(good).decode(), digest_of(good)).evict


@pytest.mark.parametrize("data", [b"", b"# only\n\n", b"\xff\xfe", b"x" * ((1 << 20) + 1)])
def test_a_list_that_says_nothing_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "list").write_bytes(data)
    with pytest.raises((BadReference, LimitExceeded)):
        PatternGate.from_file(tmp_path / "list")
    with pytest.raises(BadReference):
        PatternGate.from_file(tmp_path / "absent")


def test_a_verdict_is_kept_with_what_it_judged(tmp_path: Path) -> None:
    folder = EditsFolder(tmp_path / "edits")
    first = Verdict(digest_of([1, 2]), "texts:1", True, "holds 'x'")
    folder.keep_verdicts([first, Verdict(digest_of([3]), "texts:1", False, "")])
    folder.keep_verdicts([second := Verdict(digest_of([1, 2]), "texts:2", False, "")])
    assert folder.verdicts().on([1, 2]) == [first, second]
    assert folder.verdicts().on([2, 1]) == []
    changed = Verdict(first.digest, "texts:1", False, "")
    assert Verdicts((first, second)).adding([changed]).verdicts == (second, changed)


def test_what_a_home_keeps_is_private_and_comes_back(tmp_path: Path) -> None:
    folder = EditsFolder(tmp_path / "edits")
    assert (folder.ledger([1]), folder.verdicts().verdicts, list(folder.edits(NEW))) == (Ledger(), (), [])
    edit = Edit(OLD, NEW, "2026-01-01T00:00:00Z", RECEIPT)
    folder.keep(edit)
    folder.change_spans(lambda book: book.with_ledger([1, 2], laid([2])))
    assert list(folder.edits(NEW)) == [edit]
    assert list(folder.edits(OLD)) == []
    files = [path for path in (tmp_path / "edits").rglob("*") if path.is_file()]
    assert files
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)
    folder.keep_verdicts([Verdict(digest_of([1, 2]), "texts:1", True, "")])
    folder.forget([OLD], [[1, 2]])
    assert list(folder.edits(NEW)) == []
    assert folder.verdicts().verdicts == ()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = EditsFolder(tmp_path / "edits")
    folder.change_spans(lambda book: book.with_ledger([1, 2], laid([2])))
    write(tmp_path / "edits" / "spans", "no spans")
    with pytest.raises(Corrupt, match="spans"):
        folder.ledger([1, 2])


def test_a_book_that_nobody_could_read_again_is_not_written(tmp_path: Path) -> None:
    folder = EditsFolder(tmp_path / "edits")
    with pytest.raises(LimitExceeded, match="bytes"):
        folder.change_spans(
            lambda _: SpanBook(
                4096, tuple(Entry(Span(at + 1, f"{at:0250}", 0, 1, "b" * 250), bytes(32)) for at in range(4096))
            )
        )
    assert folder.ledger([1]) == Ledger()
