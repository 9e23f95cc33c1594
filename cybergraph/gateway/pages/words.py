"""Tokens as text, and why they are not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...cid import Cid
from ...wording import plain
from .cache import Cache
from .lookups import TextDecoder, TextOf

_MOST_CHARS: Final = 24_000
"""Of one text: as much as fits on a page."""


@dataclass(frozen=True)
class Passage:
    """A piece of a conversation to be read."""

    text: str | None
    """None without a tokenizer."""
    tokens: tuple[int, ...]
    cut: bool = False
    """The text was too long and ends early."""


class Words:
    """The tokenizers in use; loading one takes longer than a page may."""

    def __init__(self, find: TextOf) -> None:
        self._find = find
        self._held = Cache[Cid, TextDecoder](4)

    def decoder(self, model: Cid) -> TextDecoder | None:
        """Give the tokenizer of a model. One that was not found is looked for again the next time."""

        def look() -> TextDecoder:
            if (decoder := self._find(model)) is None:
                raise LookupError(model)
            return decoder

        try:
            return self._held.get(model, look)
        except LookupError:
            return None

    def passage(self, model: Cid, tokens: Sequence[int]) -> Passage:
        """Read tokens."""
        decoder = self.decoder(model)
        if decoder is None:
            return Passage(None, tuple(tokens))
        text = plain(decoder.decode(tokens).replace("\r\n", "\n"))
        return Passage(text[:_MOST_CHARS], tuple(tokens), cut=len(text) > _MOST_CHARS)

    def pieces(self, model: Cid, tokens: Sequence[int]) -> list[str] | None:
        """Read each token for itself, with white space made visible; None without a tokenizer."""
        decoder = self.decoder(model)
        return None if decoder is None else [_visible(plain(decoder.decode([token]))) for token in tokens]


def _visible(piece: str) -> str:
    return piece[:64].replace("\n", "\u21b5").replace("\t", "\u2192").replace(" ", "\u00b7")
