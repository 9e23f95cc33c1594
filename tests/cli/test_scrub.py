"""Damage and eviction as whole stories: processes that serve, scrub, fetch, evict and fetch again."""

import json
import signal
from pathlib import Path

from tests.cli.conftest import Command
from tests.cli.test_serve import finish, serving, start


def leaf_of(story: Command, index: int) -> str:
    block = story("walk", "story", "--json").lines[index]["cid"]
    leaf = story.json("show", block)["node"]["kv"][0]
    return str(leaf["/"] if isinstance(leaf, dict) else leaf)


def test_serve_finds_damage_and_takes_it_out(story: Command) -> None:
    story("publish", "story", "--public", "--yes")
    leaf = leaf_of(story, 2)
    story.damage(leaf)
    process = start(story.home, "serve", "--listen", "127.0.0.1:0")
    assert process.stdout is not None
    assert process.stderr is not None
    assert json.loads(process.stdout.readline())["url"]
    told = next(line for line in process.stderr if line.startswith("scrub:"))
    assert leaf in told
    stats = finish(story.home, "stats")
    assert stats["quarantined"] == [leaf]
    assert stats["leaves"] == 5
    assert finish(story.home, "gc")["leaves"] == 0  # a server stands in nobody's way
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    process.communicate()


def test_what_made_room_comes_back_from_where_it_came(story: Command, tmp_path: Path) -> None:
    root = story.json("publish", "story", "--public", "--yes")["root"]
    theirs = Command(tmp_path / "theirs")
    with serving(story.home) as url:
        theirs.json("fetch", root, "--from", url, "--name", "story")
        used_bytes = theirs.json("stats")["used_bytes"]
        capped = theirs.json("gc", "--cap", str(used_bytes - 1))
        assert capped["evicted_leaves"] > 0
        assert capped["used_bytes"] < used_bytes
        checked = theirs.json("fsck")
        assert (checked["ok"], checked["absent_leaves"]) == (True, capped["evicted_leaves"])
        assert "which `fetch` brings back" in theirs("fsck").stdout
        theirs("gc", "--cap", "none")
        again = theirs.json("fetch", "story")  # without being told from where
        assert again["blocks_fetched"] == capped["evicted_leaves"]
        assert theirs.json("fsck")["absent_leaves"] == 0
        # A pin makes it the only copy that counts.
        theirs("pin", "add", "story")
        assert theirs.error(8, "gc", "--cap", str(used_bytes - 1))["kind"] == "full"
        # Damage comes back from there, too.
        theirs.damage(leaf_of(theirs, 1))
        repaired = theirs.json("fsck", "--repair")
        assert repaired["ok"]
        assert [each["blocks"] for each in repaired["refetched"]] == [1]
