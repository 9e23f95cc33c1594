"""Progress as lines of JSON."""

import json
from pathlib import Path
from threading import Timer
from threading import enumerate as enumerate_threads

import pytest

from cyberkv.cli import progress
from cyberkv.cli.block_bars import _Lines
from cyberkv.cli.context import Session


def test_a_line_a_second_with_rate_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = [100.0]
    lines = _Lines(lambda: now_s[0])
    lines.phase("fetch", blocks_total=10, bytes_total=1000)
    for _ in range(4):
        now_s[0] += 0.5
        lines.advance(1, 100)
    lines.phase("check", blocks_total=2, bytes_total=7)
    now_s[0] += 0.9
    lines.advance(2, 7)
    out, err = capsys.readouterr()
    assert out == ""
    assert [json.loads(line)["progress"] for line in err.splitlines()] == [
        {"phase": "fetch", "blocks": 2, "blocks_total": 10, "bytes": 200, "bytes_total": 1000, "bytes_s": 200,
         "left_s": 4.0},
        {"phase": "fetch", "blocks": 4, "blocks_total": 10, "bytes": 400, "bytes_total": 1000, "bytes_s": 200,
         "left_s": 3.0},
    ]  # fmt: skip


@pytest.fixture
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "TOLD_AFTER_S", 0.0)


@pytest.mark.parametrize(
    ("quiet", "as_json", "told"), [(False, False, "loading tiny\n"), (True, False, ""), (False, True, "")]
)
def test_without_a_terminal_work_that_takes_long_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], no_wait: None, told: str, *, quiet: bool, as_json: bool
) -> None:
    session = Session(tmp_path, as_json=as_json, quiet=quiet, verbose=0, progress=True)
    with progress.busy(session, "loading tiny"):
        for timer in [each for each in enumerate_threads() if isinstance(each, Timer)]:
            timer.join()
    assert capsys.readouterr() == ("", told)


def test_control_what_is_done_soon_is_not_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.busy(Session(tmp_path, as_json=False, quiet=False, verbose=0, progress=True), "loading tiny"):
        pass
    assert capsys.readouterr() == ("", "")
