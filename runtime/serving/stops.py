"""Texts that end an answer, found in text that arrives in pieces.

>>> watch = StopWatch(("END",))
>>> watch.feed("one E"), watch.feed("N two E"), watch.feed("ND three"), watch.found
('one ', 'EN two ', '', True)
"""

from collections.abc import Sequence


class StopWatch:
    """Passes text on, up to the first of the stop texts. What may be the beginning of one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.found = False
        """Whether a stop text was met: nothing comes after that."""

    def feed(self, piece: str) -> str:
        """Take a piece of text and give what is certain to belong to the answer."""
        if self.found:
            return ""
        text = self._held + piece
        ends = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self.found, self._held = True, ""
            return text[: min(ends)]
        kept = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def finish(self) -> str:
        """Give what was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
