"""`stats`, `fsck`, `index rebuild` and `completion`."""

import shutil
import subprocess
from pathlib import Path

import pytest

from cyberkv.cybergraph.errors import Corrupt
from cyberkv.cybergraph.probe import probe
from cyberkv.cybergraph.store import DiskStore
from tests.cli.conftest import Command
from tests.contracts.synthetic import leaf


def test_stats_count_what_is_there(story: Command, tiny_folder: Path) -> None:
    stats = story.json("stats")
    assert (stats["blocks"], stats["segments"], stats["roots"], stats["conversations"]) == (5, 1, 1, 1)
    assert stats["leaves"] == 6
    assert stats["nodes"] == 8
    assert stats["leaf_bytes"] == 85 * 768
    assert (stats["published"], stats["divergences"], stats["unreadable"]) == (0, [], 0)
    assert list(stats["domains"].values()) == [5]
    assert (stats["models"], stats["registered_models"]) == (1, 1)
    page = story("stats").stdout
    assert "5 of 1 model" in page
    assert "1 registered; their weights are not counted here" in page
    assert "1 name, 1 root" in page
    story("model", "add", tiny_folder, "--name", "wide", "--block-size", 32)
    stats = story.json("stats")
    assert (stats["models"], stats["registered_models"]) == (1, 2)


def test_fsck_of_a_sound_home_is_ok(story: Command) -> None:
    checked = story.json("fsck")
    assert (checked["ok"], checked["findings"]) == (True, [])
    assert (checked["leaves"], checked["conversations"], checked["index_entries"]) == (6, 1, 5)
    assert "nothing is wrong" in story("fsck").stdout


def test_fsck_names_what_is_damaged_and_repair_drops_it(story: Command) -> None:
    block = story("walk", "story", "--json").lines[1]["cid"]
    [leaf] = story.json("show", block)["node"]["kv"]
    story.damage(leaf)
    found = story("fsck", "--json", ok=False)
    assert found.exit_code == 4
    assert [(each["cid"], each["what"]) for each in found.json["findings"]] == [(leaf, "block")]
    assert "1 thing is wrong" in story("fsck", ok=False).stdout
    repaired = story("fsck", "--repair", "--json", ok=False)
    assert repaired.json["dropped"] == [leaf]
    # A named conversation still needs it, and that is said until it is back.
    assert repaired.exit_code == 4
    assert [each["cid"] for each in repaired.json["findings"]] == [leaf]
    story("prefill", "-", "--from", "story", stdin=" More.")
    assert story("fsck").exit_code == 0


def test_index_rebuild_brings_back_a_lost_index(story: Command) -> None:
    before = story.json("list")["conversations"]
    shutil.rmtree(story.home / "index")
    for line in (["list"], ["run", "Hello"], ["fsck"]):
        assert story.error(3, *line)["hint"] == "run `cyberkv index rebuild`"
    rebuilt = story.json("index", "rebuild")
    assert (rebuilt["blocks"], rebuilt["names"]) == (5, ["story"])
    assert story.json("list")["conversations"] == before
    assert story.json("index", "rebuild")["names"] == []
    assert story("fsck").exit_code == 0


def test_repair_names_nothing_that_was_forgotten(story: Command) -> None:
    story("prefill", "-", "--name", "other", stdin="A tide of violet letters rolled over the harbour.")
    [other] = story.json("show", story("walk", "other", "--json").lines[0]["cid"])["node"]["kv"]
    story("forget", "story")
    story.damage(other)
    assert story("fsck", "--repair", "--json", ok=False).json["dropped"] == [other]
    assert story.json("index", "rebuild")["names"] == []
    assert [each["name"] for each in story.json("list")["conversations"]] == ["other"]
    shutil.rmtree(story.home / "index")
    assert story.json("index", "rebuild")["names"] == ["story"]  # the control: it was whole


def test_a_page_that_ends_the_process_is_an_error_of_fsck(story: Command) -> None:
    with DiskStore(story.home / "store") as store:
        store.put_many(leaf(b"%d" % number) for number in range(300))  # several pages of entries
    database = story.home / "store" / "catalog" / "data.mdb"
    sound = database.read_bytes()

    def ends_a_process(at: int) -> bool:
        database.write_bytes(sound[:at] + bytes(4096) + sound[at + 4096 :])
        try:
            probe(database.parent)
        except Corrupt:
            return True
        return False

    assert any(map(ends_a_process, range(2 * 4096, len(sound), 4096)))
    assert "ends the process" in story.error(4, "fsck")["message"]
    database.write_bytes(sound)
    assert story("fsck").exit_code == 0  # the control


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_gives_a_script(cyberkv: Command, shell: str) -> None:
    script = cyberkv.json("completion", shell)["script"]
    assert "_CYBERKV_COMPLETE" in script
    assert script.strip() in cyberkv("completion", shell).stdout
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_completion_knows_commands_and_conversations(story: Command) -> None:
    from click.shell_completion import ShellComplete

    from cyberkv.cli.main import cli

    def complete(*words: str) -> list[str]:
        args = ["--home", str(story.home), *words]
        completer = ShellComplete(cli, {}, "cyberkv", "_CYBERKV_COMPLETE")
        return [each.value for each in completer.get_completions(args[:-1], args[-1])]

    assert complete("wa") == ["walk"]
    assert complete("show", "st") == ["story"]
    assert complete("diff", "story", "") == ["story"]
    assert complete("show", "x") == []
