"""The command on a terminal, with somebody who reads there and types."""

import os
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pexpect.fdpexpect import fdspawn

from tests.forked import Forked

ROWS, COLUMNS = 60, 200


@contextmanager
def on_terminal(line: Sequence[object]) -> Iterator[tuple[fdspawn, Forked]]:
    """Give who reads and types, and the process. Whatever it waits for has ended when the `with` does."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(ours, (ROWS, COLUMNS))
    with Forked(line, terminal=theirs) as process:
        os.close(theirs)
        with fdspawn(ours, encoding="utf-8", timeout=120) as child:
            yield child, process
