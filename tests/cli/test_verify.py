"""`verify`: what it says was checked, and what fails."""

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.store import DiskStore
from tests.cli.conftest import Command


def test_a_sound_conversation_is_counted_block_by_block(story: Command) -> None:
    found = story.json("verify", "story")
    assert found["root"] == story.json("show", "story")["cid"]
    assert (found["level"], found["failed"]) == ("integrity", [])
    assert (found["checked"], found["in_place"], found["indexed"]) == (14, 5, 5)
    assert found["bytes"] == story.json("stats")["bytes"]
    page = story("verify", "story").stdout
    assert "integrity holds" in page
    assert "not checked" in page


def test_what_is_approximate_is_said_beside_what_was_checked(story: Command) -> None:
    assert story.json("verify", "story")["approx"] is None  # the control
    assert "approximate" not in story("verify", "story").stdout
    story("evict", "story", "20:30", "--mode", "fast")
    [listed] = story.json("list")["conversations"]
    assert story.json("verify", "story")["approx"] == listed["approx"]
    page = story("verify", "story").stdout
    assert f"approximate  {listed['approx']}" in page
    assert page.endswith("integrity holds of an approximate conversation\n")


def test_what_fails_is_named_and_the_rest_is_still_checked(story: Command) -> None:
    blocks = [block["cid"] for block in story("--json", "walk", "story").lines]
    leaf = story.json("show", blocks[1])["node"]["kv"][0]
    [tail] = story.json("show", "story")["node"]["tail"]["kv"]
    story.damage(leaf)
    with DiskStore(story.home / "store") as store:
        store.delete_many([Cid.parse(tail)])
    result = story("--json", "verify", "story", ok=False)
    assert result.exit_code == 4
    assert [each["cid"] for each in result.json["failed"]] == [leaf]
    assert result.json["absent"] == [tail]
    assert (result.json["checked"], result.json["in_place"]) == (13, 5)
    page = story("verify", "story", ok=False)
    assert page.exit_code == 4
    assert f"  {leaf}\n" in page.stdout
    assert "1 object failed" in page.stdout
    assert f"1 object not here, the first is {tail}" in page.stdout
    assert "integrity holds" not in page.stdout


def test_a_block_that_is_gone_ends_the_check_of_places_there(story: Command) -> None:
    blocks = [block["cid"] for block in story("--json", "walk", "story").lines]
    with DiskStore(story.home / "store") as store:
        store.delete_many([Cid.parse(blocks[3])])
    result = story("--json", "verify", "story", ok=False)
    assert (result.json["failed"], result.json["absent"]) == ([], [blocks[3]])
    assert (result.exit_code, result.json["in_place"]) == (3, 3)
    page = story("verify", "story", ok=False)
    assert page.exit_code == 3
    assert "`cyberkv fetch story` brings them back" in page.stdout


def test_a_conversation_that_is_not_here_is_not_found(story: Command) -> None:
    absent = Cid.of(b"absent", "dag-cbor", "sha2-256")
    assert story.error(3, "verify", absent)["kind"] == "block-not-found"


@pytest.mark.parametrize("level", ["layer0", "spot", "full"])
def test_other_levels_are_refused_and_the_available_ones_named(story: Command, level: str) -> None:
    error = story.error(5, "verify", "story", "--level", level, "--samples", 2)
    assert (error["kind"], error["available"]) == ("refused", ["integrity", "receipt"])
    assert "integrity" in error["hint"]
    assert set(error["unavailable"]) == {"layer0", "spot", "full"}
    assert error["unavailable"][level] in error["message"]


def test_a_level_that_nobody_knows_is_a_usage_error_that_lists_them(story: Command) -> None:
    error = story.error(2, "verify", "story", "--level", "all")
    assert error["kind"] == "usage"
    assert all(level in error["message"] for level in ("integrity", "receipt", "layer0", "spot", "full"))
    assert "Not there yet: layer0, spot, full" in " ".join(story("verify", "-h").stdout.split())


def test_samples_belong_to_another_level(story: Command) -> None:
    assert story.error(2, "verify", "story", "--samples", 2)["kind"] == "usage"
    assert story.error(2, "verify", "story", "--level", "all")["kind"] == "usage"
