"""Progress as lines of JSON."""

import json

import pytest

from cyberkv.cli.block_bars import _Lines


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
