"""Text for terminals, and names made of text."""

from hypothesis import given
from hypothesis import strategies as st

from cyberkv.cli import names, text
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.index.marks import encode_name


@given(st.text())
def test_plain_text_has_no_control_characters_and_keeps_the_rest(foreign: str) -> None:
    shown = text.plain(foreign)
    assert len(shown) == len(foreign)
    shown.encode()
    for before, after in zip(foreign, shown, strict=True):
        if before in "\n\t" or before.isprintable():
            assert after == before
        elif ord(before) < 0x20 or 0x7F <= ord(before) < 0xA0:
            assert after != before


@given(st.text(), st.integers(1, 40))
def test_a_preview_is_one_line_of_bounded_length(foreign: str, most_chars: int) -> None:
    line = text.preview(foreign, most_chars)
    assert len(line) <= most_chars
    assert len(line.splitlines()) <= 1


@given(st.text(), st.sampled_from(["", "bafyrei", "-", "a/"]))
def test_a_made_name_is_a_name(prompt: str, start: str) -> None:
    assert encode_name(names.slug(start + prompt))


def test_a_name_that_is_taken_gets_a_number_and_stays_a_name(index: Index) -> None:
    root = Cid.of(b"root", "dag-cbor", "sha2-256")
    for base in ("talk", "x" * 255, "é" * 127):
        made = [names.unique(index, base)]
        for _ in range(12):
            index.set_head(made[-1], root, "")
            made.append(names.unique(index, base))
        assert len({*made}) == 13
        assert all(map(encode_name, made))
