"""Ctrl-C at moments when nothing is half done."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

INTERRUPTED: Final = 130
_SOON_S: Final = 0.02
_IMPORTING: Final = "<frozen importlib._bootstrap>"


class Stop:
    """Whether the user asked to stop."""

    def __init__(self) -> None:
        self.asked = False
        self.held = False

    def ask(self, _signal: int, _frame: FrameType | None) -> None:
        """Remember a first Ctrl-C, obey a second one at once unless all are held back."""
        if self.asked and not self.held:
            raise KeyboardInterrupt
        self.asked = True

    def check(self) -> None:
        """Obey, at a moment when nothing is half done."""
        if self.asked:
            raise KeyboardInterrupt

    def hold(self) -> None:
        """Hold every Ctrl-C back until the `with` ends: what is recorded from here on is also told as recorded."""
        self.held = True
        _install(self.ask)


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Hold Ctrl-C back until `check` is called; a second one does not wait."""
    stop, before = Stop(), signal.getsignal(signal.SIGINT)
    _install(stop.ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def holdable() -> Iterator[Stop]:
    """Leave Ctrl-C as it is until `hold` is called; one that came after that counts when the `with` ends."""
    stop, before = Stop(), signal.getsignal(signal.SIGINT)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
    if stop.asked:
        signal.raise_signal(signal.SIGINT)


def _install(ask: Callable[[int, FrameType | None], None]) -> None:
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # who started it lets it ignore Ctrl-C
        signal.signal(signal.SIGINT, ask)


def leave_at_once() -> None:
    """Have a Ctrl-C end the program without a word, until `obey_late_interrupts`: nothing has begun yet."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else who started it lets it ignore Ctrl-C
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))


def obey_late_interrupts() -> None:
    """Have a Ctrl-C count a moment later where it would be dropped or do harm.

    Python drops it while it frees memory. Within an import, libraries in C drop it too, or end the process by a signal.
    """
    before = sys.unraisablehook

    def hook(raised: "sys.UnraisableHookArgs") -> None:
        if issubclass(raised.exc_type, KeyboardInterrupt):
            _ask_again()
        else:
            before(raised)

    def obey(_signal: int, frame: FrameType | None) -> None:
        if _imports(frame):
            _ask_again()
        else:
            raise KeyboardInterrupt

    sys.unraisablehook = hook
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, obey)


def _ask_again() -> None:
    # A signal, and no mere mark: it has to wake the thread up where that waits for input.
    again = threading.Timer(_SOON_S, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    again.daemon = True  # the program may end meanwhile
    again.start()


def _imports(frame: FrameType | None) -> bool:
    """Say whether an import is under way."""
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTING:
            return True
        frame = frame.f_back
    return False
