"""`demo evict`, line by line."""

import re
from pathlib import Path

import pytest

from cyberkv.runtime.edits import evict as edits
from tests.cli.conftest import Command

LINES = (
    r"a random model reads 240 tokens; 80:144 are taken out",
    r"largest difference of the next token's scores to a run that never saw them:",
    r"  evict --mode exact  0\.000e\+00",
    r"  still there         [1-9]\.\d{3}e[+-]\d\d",
    r"  evict --mode fast   [1-9]\.\d{3}e[+-]\d\d",
    r"exact computed 96 tokens again; all 11 blocks are named as in that run",
    r"everything holds",
)


def test_each_line(tmp_path: Path) -> None:
    lines = Command(tmp_path / "home")("demo", "evict").stdout.splitlines()
    assert len(lines) == len(LINES)
    for line, pattern in zip(lines, LINES, strict=True):
        assert re.fullmatch(pattern, line), line
    assert list(tmp_path.iterdir()) == []


def test_an_eviction_that_leaves_something_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = Command(tmp_path / "home")
    figures = command.json("demo", "evict")
    assert figures["ok"]
    assert figures["differences"]["exact"] == 0 < figures["differences"]["fast"]
    assert figures["differences"]["poison"] > 0
    monkeypatch.setitem(edits._EDITS, "exact", edits._EDITS["fast"])
    result = command("--json", "demo", "evict", ok=False)
    assert (result.exit_code, result.json["ok"]) == (1, False)
    assert result.json["differences"]["exact"] > 0
    assert command("demo", "evict", ok=False).stdout.splitlines()[-1] == "this does not hold"
