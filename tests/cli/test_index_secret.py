"""A home whose index has no secret yet, or has lost it."""

from cyberkv.cybergraph.index.secret import secret_path
from cyberkv.cybergraph.store import DiskStore
from tests.cli.conftest import STORY, Command
from tests.contracts.first_index import make_first_version


def reused(command: Command) -> int:
    count: int = command.json("prefill", "-", "--name", "again", stdin=STORY)["tokens_reused"]
    return count


def test_an_older_home_gets_a_secret_and_says_so_once(story: Command) -> None:
    with DiskStore(story.home / "store") as store:
        make_first_version(story.home / "index", store)
    first = story("--json", "list")
    assert "index.secret" in first.stderr
    assert [each["name"] for each in first.json["conversations"]] == ["story"]
    assert story("list").stderr == ""
    assert reused(story) == 80
    assert story("fsck").exit_code == 0


def test_a_lost_secret_is_one_command_away(story: Command) -> None:
    secret_path(story.home / "index").unlink()
    error = story.error(4, "list")
    assert "index rebuild" in error["hint"]
    assert error["path"].endswith("index.secret")
    assert story.json("index", "rebuild")["names"] == []
    assert [each["name"] for each in story.json("list")["conversations"]] == ["story"]
    assert reused(story) == 80
    assert story("fsck").exit_code == 0
