"""Ctrl-C at moments when nothing is half done."""

import _thread
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SOON_S: Final = 0.02


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


def obey_late_interrupts() -> None:
    """Have a Ctrl-C that met the program while it freed memory count a moment later: Python drops it there."""
    before = sys.unraisablehook

    def hook(raised: "sys.UnraisableHookArgs") -> None:
        if issubclass(raised.exc_type, KeyboardInterrupt):
            threading.Timer(_SOON_S, _thread.interrupt_main).start()
        else:
            before(raised)

    sys.unraisablehook = hook
