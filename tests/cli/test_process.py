"""The installed command as a process: streams, signals, exit codes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.forked import Forked

PROGRAM = [sys.executable, "-m", "cyberkv.cli"]
FILLER = "The sea was calm and the night was long, and nobody spoke for a while. " * 20


def start(home: Path, *args: str) -> Forked:
    return Forked(["--home", home, *args], text=False)


def test_the_installed_script_is_the_same_program() -> None:
    script = Path(sys.executable).with_name("cyberkv")
    pages = [subprocess.run([*line, "-h"], capture_output=True, check=True).stdout for line in ([script], PROGRAM)]
    assert pages[0] == pages[1] != b""


def test_stdout_is_one_object_and_errors_keep_their_code(story: Command) -> None:
    for line, code in ((["list"], 0), (["show", "nothing-here"], 3), (["fork", "story"], 2)):
        process = start(story.home, "--json", *line)
        stdout, stderr = process.communicate()
        assert process.returncode == code
        assert ("error" in json.loads(stdout)) == bool(code)
        assert stderr == b""


def test_words_that_are_not_utf8_are_a_usage_error(story: Command) -> None:
    word = os.fsdecode(b"\xff\xfe")
    lines = {("run", word): 2, ("run", "x", "--system", word): 2, ("why", word): 2, ("find", word): 2,
             ("run", "x", f"--name={word}"): 2, ("show", word): 3, ("prefill", word): 3, ("chat", "--system", word): 2,
             ("model", "add", word): 3, (word,): 2}  # fmt: skip
    for line, code in lines.items():
        process = start(story.home, "--json", *line)
        stdout, stderr = process.communicate()
        assert (process.returncode, stderr) == (code, b""), (line, stdout)
        assert json.loads(stdout)["error"]["kind"] != "unexpected"


@pytest.mark.slow  # what another process recorded is seen below, too
def test_the_full_home_of_a_run_in_another_process_is_seen(story: Command) -> None:
    process = start(story.home, "--json", "run", "Hello there, keeper", "--max-tokens", "8")
    figures = json.loads(process.communicate()[0])
    assert process.returncode == 0
    assert story.json("show", figures["name"])["cid"] == figures["root"]


def test_ctrl_c_while_answering_keeps_what_was_said(cyberkv: Command) -> None:
    process = start(
        cyberkv.home, "run", FILLER, "--name", "talk", "--max-tokens", "100000", "--temperature", "3",
    )  # fmt: skip
    first = os.read(process.stdout.fileno(), 1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode == 130, stderr
    assert first
    [kept] = cyberkv.json("list")["conversations"]
    assert kept["name"] == "talk"
    assert kept["tokens"] > len(FILLER)
    assert kept["root"].encode() in stderr
    assert cyberkv("fsck").exit_code == 0
    assert cyberkv.json("run", "Go on", "--from", "talk", "--max-tokens", 1)["tokens_reused"] == kept["tokens"]


def test_ctrl_c_before_anything_was_recorded_records_nothing(cyberkv: Command) -> None:
    fifo = cyberkv.home.parent / "fifo"
    os.mkfifo(fifo)
    process = start(cyberkv.home, "--json", "prefill", str(fifo))
    with fifo.open("wb"):  # opens once the program reads, which then waits for text
        process.send_signal(signal.SIGINT)
        stdout, _ = process.communicate()
    assert process.returncode == 130
    assert json.loads(stdout)["error"]["kind"] == "interrupted"
    assert cyberkv.json("list")["conversations"] == []
    assert cyberkv("fsck").exit_code == 0


def test_a_reader_that_leaves_is_no_error_to_talk_about(cyberkv: Command) -> None:
    cyberkv("prefill", "-", "--name", "long", stdin=FILLER)
    line = [*PROGRAM, "--home", str(cyberkv.home), "walk", "long", "--json"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 1)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in (0, 1)


def test_text_reaches_a_pipe_of_any_encoding(story: Command) -> None:
    story("prefill", "-", "--name", "wide", stdin="漢字かな交じり文 and more text")
    line = [*PROGRAM, "--home", str(story.home), "walk", "wide"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(line, capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
