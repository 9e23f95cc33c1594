"""Passages: overlapping spans of a document's tokens, so that a long one is found by its part.

>>> spans(100)
[(0, 100)]
>>> spans(400)
[(0, 192), (128, 320), (256, 400)]
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from .encoder import Encoder
from .library import Document, Library, Vectors

PASSAGE_TOKENS = 192
"""Three blocks of 64, and what the sentence model reads at once."""
STRIDE_TOKENS = 128

Texts = Callable[[Document, Items[tuple[int, int]]], Items[str]]
"""Gives the texts of some spans of a document's tokens."""


def spans(tokens: int) -> list[tuple[int, int]]:
    """Cut a document into passages: together they cover it, and neighbours overlap by 64 tokens."""
    starts = range(0, max(1, tokens - PASSAGE_TOKENS + STRIDE_TOKENS), STRIDE_TOKENS)
    return [(start, min(start + PASSAGE_TOKENS, tokens)) for start in starts]


@dataclass(frozen=True, slots=True)
class Found:
    """A passage, and how near it is to what was asked: the cosine of the angle between them."""

    document: Document
    start: int
    end: int
    score: float


class Retriever:
    """Looks through every passage of every document: exact, and quick enough for what one home holds."""

    def __init__(
        self, library: Library, encoder: Encoder, texts: Callable[[Document, Items[tuple[int, int]]], Items[str]]
    ) -> None:
        """`texts` gives the texts of some spans of a document."""
        self._library = library
        self._encoder = encoder
        self._texts = texts

    def search(self, query: str, documents: Iterable[Document], k: int) -> list[Found]:
        """List the `k` nearest passages, the nearest first; equal ones by name of the document and place.

        Effects: makes and keeps the vectors of documents that have none.
        """
        asked = self._encoder.encode([query])[0]
        found = [
            Found(document, start, end, float(score))
            for document in documents
            for (start, end), score in zip(spans(document.tokens), self._vectors(document) @ asked, strict=True)
        ]
        return sorted(found, key=lambda each: (-each.score, each.document.name, each.start))[:k]

    def _vectors(self, document: Document) -> Vectors:
        cut, encoder = spans(document.tokens), self._encoder
        known = self._library.vectors(document, encoder.name, passages=len(cut), dimensions=encoder.dimensions)
        if known is None:
            known = np.asarray(encoder.encode(self._texts(document, cut)), dtype=np.float32)
            self._library.keep_vectors(document, encoder.name, known)
        return known


def merged(found: Iterable[Found]) -> list[tuple[Document, int, int]]:
    """Join passages of one document that overlap or touch; documents stay in the order of their best passage."""
    groups: dict[str, list[Found]] = {}
    for each in found:
        groups.setdefault(str(each.document.root), []).append(each)
    pieces: list[tuple[Document, int, int]] = []
    for group in groups.values():
        group.sort(key=lambda each: each.start)
        start, end = group[0].start, group[0].end
        for each in group[1:]:
            if each.start > end:
                pieces.append((each.document, start, end))
                start = each.start
            end = max(end, each.end)
        pieces.append((group[0].document, start, end))
    return pieces
