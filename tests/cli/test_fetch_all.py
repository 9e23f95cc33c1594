"""`fetch` with several CIDs: in turns, each recorded under its title, and each with the word of who signed it."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import STORY, Command

MORE = " Then the wind turned."


@pytest.fixture
def cars(story: Command, tmp_path: Path) -> dict[str, tuple[dict[str, Any], Path]]:
    """`story`, what goes on from it (signed), and each in a file."""
    story("prefill", "-", "--from", "story", "--name", "longer", stdin=MORE)
    story("key", "new")
    found = {}
    for name, sign in (("story", "--no-sign"), ("longer", "--sign")):
        path = tmp_path / f"{name}.car"
        found[name] = (story.json("publish", name, "--public", "--yes", sign, "--car", path), path)
    return found


def test_several_come_in_one_fetch(elsewhere: Command, cars: dict[str, tuple[dict[str, Any], Path]]) -> None:
    (story, first), (longer, second) = cars.values()
    line = ["fetch", story["root"], longer["receipt"], "--from", first, "--from", second]
    result = elsewhere("--json", *line)
    rows = {row["root"]: row for row in result.json["conversations"]}
    assert list(rows) == [story["root"], longer["root"]]
    assert (rows[story["root"]]["receipt"], rows[story["root"]]["usable"]) == (None, False)
    assert rows[longer["root"]]["receipt"] == longer["receipt"]
    assert rows[longer["root"]]["signed_by"][0]["key"] == longer["signed_by"]
    assert rows[longer["root"]]["blocks_had"] > 5 * 2, "what the first brought"
    assert result.json["refused"] == []
    assert result.stderr.count("to look at") == 2
    assert len(elsewhere.json("list")["conversations"]) == 2
    elsewhere.error(5, "run", MORE, "--from", longer["root"])
    again = elsewhere.json("fetch", story["root"], longer["receipt"], "--trust", longer["signed_by"])
    assert [row["blocks_fetched"] for row in again["conversations"]] == [0, 0]
    assert [row["usable"] for row in again["conversations"]] == [False, True]
    assert elsewhere.json("prefill", "-", "--name", "next", stdin=STORY + MORE)["tokens_reused"] > 80
    assert elsewhere("fetch", *line[1:]).stdout.count("were here, 0 fetched") == 2


def test_one_that_is_nowhere_records_nothing(elsewhere: Command, cars: dict[str, tuple[dict[str, Any], Path]]) -> None:
    (story, first), (longer, _) = cars.values()
    error = elsewhere.error(3, "fetch", story["root"], longer["root"], "--from", first)
    assert longer["root"] in error["message"]
    assert elsewhere.json("list")["conversations"] == []
    elsewhere("fetch", story["root"], "--from", first)


def test_what_does_not_go_together_is_refused(
    story: Command, elsewhere: Command, cars: dict[str, tuple[dict[str, Any], Path]], tmp_path: Path
) -> None:
    (plain, first), _ = cars.values()
    for option in (["--name", "x"], ["--router", "http://127.0.0.1:9"], ["cyberkv://x#v1"]):
        elsewhere.error(2, "fetch", plain["root"], plain["root"], *option)
    sealed = story.json("publish", "story", "--link", "--car", tmp_path / "sealed.car")
    error = elsewhere.error(
        2, "fetch", plain["root"], sealed["root"], "--from", first, "--from", tmp_path / "sealed.car"
    )
    assert "is a cyberkv/sealed" in error["message"]
