"""A Ctrl-C at a moment in which Python would drop it."""

import subprocess
import sys

import pytest

PROGRAM = """
import signal, sys, time
from cyberkv.cli.interrupt import obey_late_interrupts
if sys.argv[1] == "obeyed":
    obey_late_interrupts()
class Freed:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
try:
    Freed()
    time.sleep(3)
    print("slept")
except KeyboardInterrupt:
    print("stopped")
"""


@pytest.mark.parametrize(("how", "said"), [("obeyed", "stopped"), ("dropped", "slept")])
def test_a_ctrl_c_while_memory_is_freed_counts_a_moment_later(how: str, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == said
    assert ("Exception ignored" in done.stderr) == (how == "dropped")
