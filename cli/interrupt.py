"""Ctrl-C at moments when nothing is half done."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Whether the user asked to stop."""

    def __init__(self) -> None:
        self.asked = False

    def ask(self, _signal: int, _frame: FrameType | None) -> None:
        """Remember a first Ctrl-C, obey a second one at once."""
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def check(self) -> None:
        """Obey, at a moment when nothing is half done."""
        if self.asked:
            raise KeyboardInterrupt


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Hold Ctrl-C back until `check` is called; a second one does not wait."""
    stop = Stop()
    before = signal.signal(signal.SIGINT, stop.ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
