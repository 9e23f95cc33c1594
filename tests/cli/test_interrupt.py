"""A Ctrl-C at a moment in which it would be dropped, or do harm."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest

from tests.cli.conftest import Command

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
    time.sleep(30 if sys.argv[1] == "obeyed" else 1)
    print("slept")
except KeyboardInterrupt:
    print("stopped")
"""


@pytest.mark.parametrize(("how", "said"), [("obeyed", "stopped"), ("dropped", "slept")])
def test_a_ctrl_c_while_memory_is_freed_counts_a_moment_later(how: str, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == said
    assert ("Exception ignored" in done.stderr) == (how == "dropped")


IMPORTER = """
import sys, time
from cyberkv.cli.interrupt import obey_late_interrupts
if sys.argv[1] == "obeyed":
    obey_late_interrupts()
try:
    import careless
    time.sleep(30 if sys.argv[1] == "obeyed" else 1)
    print("slept")
except KeyboardInterrupt:
    print("stopped", "careless" in sys.modules)
"""
CARELESS = """
import signal
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    pass  # as libraries in C do
"""


@pytest.mark.parametrize(("how", "said"), [("obeyed", "stopped True"), ("dropped", "slept")])
def test_a_ctrl_c_within_an_import_counts_after_it(how: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "careless.py").write_text(CARELESS)
    (tmp_path / "importer.py").write_text(IMPORTER)
    line = [sys.executable, tmp_path / "importer.py", how]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout.strip(), done.stderr) == (said, "")


BEGIN = """
from cyberkv.cli.interrupt import leave_at_once
leave_at_once()
print("begun", flush=True)
from cyberkv.cli.__main__ import main
main()
"""
MOMENTS = 8
"""As many parts has the start, and one moment is in each."""
START_UP_S = 2.5


@pytest.mark.slow
def test_a_ctrl_c_at_any_moment_of_the_start_is_one(cyberkv: Command) -> None:
    line = [sys.executable, "-c", BEGIN, "--home", str(cyberkv.home), "chat"]
    moments = random.Random(5)
    for part in range(MOMENTS):
        wait_s = (part + moments.random()) / MOMENTS * START_UP_S
        with subprocess.Popen(line, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            time.sleep(wait_s)
            process.send_signal(signal.SIGINT)
            stderr = process.communicate()[1]  # closes stdin: without the signal it would end with 0
        assert (process.returncode, "Traceback" in stderr) == (130, False), (wait_s, stderr)
    assert cyberkv.json("list")["conversations"] == []
    assert cyberkv("fsck").exit_code == 0


def test_who_starts_it_may_have_it_ignore_ctrl_c(cyberkv: Command) -> None:
    script = 'trap "" INT; "$@" & echo $!; wait $!; echo code $?'
    line = [
        "sh",
        "-c",
        script,
        "sh",
        sys.executable,
        "-m",
        "cyberkv.cli",
        "--home",
        str(cyberkv.home),
        "list",
        "--json",
    ]
    with subprocess.Popen(line, stdin=DEVNULL, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        pid = process.stdout.readline().strip()
        subprocess.run(["kill", "-INT", pid], check=True)
        assert process.communicate()[0].endswith("code 0\n")
