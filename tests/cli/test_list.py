"""`list` in words, and hints where something was nearly right."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from cyberkv.cli.identities import FILE_VARIABLE
from tests.cli.conftest import STORY, Command


def listed(command: Command) -> dict[str, Any]:
    return {each["name"]: each for each in command.json("list")["conversations"]}


def test_a_document_has_the_name_of_its_model(story: Command) -> None:
    story("document", "add", "-", "--name", "note", stdin=STORY * 2)
    names = {name: each["model_name"] for name, each in listed(story).items()}
    assert names == {"story": "tiny", "note": "tiny in blocks of 64"}
    assert "tiny in blocks of 64" in story("list").stdout
    shutil.rmtree(story.home / "models")
    assert {each["model_name"] for each in listed(story).values()} == {None}  # the control


def test_what_is_locked_says_so(story: Command) -> None:
    assert "locked" not in story("list").stdout
    story("lock", "story", "--weak")
    assert (listed(story)["story"]["locked"], "tokens" in listed(story)["story"]) == (True, False)
    assert "locked (sealed): `cyberkv unlock story` opens it" in story("list").stdout


def test_what_is_partial_or_approximate_says_so(story: Command, elsewhere: Command, tmp_path: Path) -> None:
    car = tmp_path / "story.car"
    root = story.json("publish", "story", "--public", "--yes", "--car", car)["root"]
    elsewhere("fetch", root, "--from", car, "--trust", "unsigned")
    assert (listed(elsewhere)["story"]["missing_blocks"], "partial" in elsewhere("list").stdout) == (0, False)
    assert elsewhere.json("gc", "--cap", 40_000)["evicted_leaves"] > 0
    missing = listed(elsewhere)["story"]["missing_blocks"]
    assert 0 < missing <= 5
    assert f"partial: {missing} of 5 blocks lack rows here, `cyberkv fetch story`" in elsewhere("list").stdout
    story("evict", "story", "3:20", "--mode", "fast")
    assert "approximate: " in story("list").stdout


def test_a_file_in_place_of_what_to_fetch(story: Command, elsewhere: Command, tmp_path: Path) -> None:
    car = tmp_path / "my story.car"
    root = story.json("publish", "story", "--public", "--yes", "--car", car)["root"]
    error = elsewhere.error(2, "fetch", car)
    assert error["hint"] == f"cyberkv fetch {root} --from '{car}'"
    assert error["roots"] == [root]
    assert "cyberkv fetch CID --from" in elsewhere.error(2, "fetch", tmp_path / "absent.car")["hint"]
    assert elsewhere.json("fetch", root, "--from", car, "--trust", "unsigned")["root"] == root  # the control


def test_a_text_in_place_of_a_source(story: Command, elsewhere: Command, tmp_path: Path) -> None:
    root = story.json("show", "story")["cid"]
    (tmp_path / "story.txt").write_text(STORY)
    error = elsewhere.error(4, "fetch", root, "--from", tmp_path / "story.txt")
    assert (error["kind"], "is no CAR file" in error["message"]) == ("malformed-car", True)
    assert "cyberkv prefill" in error["hint"]


def test_a_reader_without_a_label_is_shown_once(story: Command, elsewhere: Command) -> None:
    public = elsewhere.json("key", "new")["public"]
    fingerprint = elsewhere.json("key", "list")["keys"][0]["fingerprint"]
    story("publish", "story", "--to", public, "--yes")
    page = story("grant", "list", "story").stdout
    assert (page.count(fingerprint), "no label" in page) == (1, True)


def test_a_key_under_a_passphrase_says_how_to_see_it(
    cyberkv: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "words").write_text("open sesame\n")
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "words"))
    cyberkv("key", "new", "safe", "--passphrase")
    cyberkv("key", "new", "bare")
    monkeypatch.delenv(FILE_VARIABLE)
    bare, safe = cyberkv("key", "list").stdout.splitlines()
    assert "`cyberkv key show safe` asks for it" in safe
    assert "passphrase" not in bare
