"""Damage and eviction as whole stories: processes that serve, scrub, fetch, evict and fetch again."""

import json
import signal
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from cyberkv.cli.context import Session
from cyberkv.cli.scrubbing import scrubbing
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.keeping.scrub import Scrub
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
    assert json.loads(process.stdout.readline())["url"]
    told = next(line for line in process.stderr if line.startswith("scrub:"))
    assert leaf in told
    stats = finish(story.home, "stats")
    assert stats["quarantined"] == [leaf]
    assert stats["leaves"] == 5
    assert finish(story.home, "gc")["leaves"] == 0  # a server stands in nobody's way
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    process.communicate()


def test_chat_finds_damage_while_it_waits_for_a_line(story: Command) -> None:
    leaf = leaf_of(story, 2)
    story.damage(leaf)
    process = start(story.home, "chat", stdin=subprocess.PIPE)
    told = next(line for line in process.stderr if line.startswith("scrub:"))
    assert leaf in told
    process.communicate("")
    assert process.returncode == 0
    assert finish(story.home, "stats")["quarantined"] == [leaf]


def test_a_ctrl_c_as_the_scrub_starts_ends_it(story: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would read on in a store that is closed."""
    started: list[Scrub] = []

    def interrupted(scrub: Scrub) -> None:
        start_scrub(scrub)
        started.append(scrub)
        raise KeyboardInterrupt

    start_scrub = Scrub.start
    monkeypatch.setattr(Scrub, "start", interrupted)
    assert story("prefill", "-", "--name", "new", stdin="Some text.", ok=False).exit_code == 130
    [scrub] = started
    assert not scrub._thread.is_alive()


class Thorough(Scrub):
    """Goes through everything before it ends, however short the command was."""

    def close(self) -> None:
        while not self.done.rounds:
            Event().wait(0.001)
        super().close()


@pytest.mark.parametrize(
    "line", [("run", "Hello", "--max-tokens", 3), ("prefill", "-", "--name", "new")], ids=lambda line: line[0]
)
def test_commands_that_compute_find_damage(
    story: Command, monkeypatch: pytest.MonkeyPatch, line: tuple[object, ...]
) -> None:
    monkeypatch.setattr("cyberkv.cli.scrubbing.Scrub", Thorough)
    leaf = leaf_of(story, 2)
    assert "scrub:" not in story(*line, stdin="Some text.").stderr  # the control
    story.damage(leaf)
    assert leaf in story(*line, stdin="Some text.").stderr
    assert story.json("stats")["quarantined"] == [leaf]


def test_damage_in_a_home_that_is_only_read_is_told_and_reading_goes_first(
    story: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Callable[[], int]] = []

    class Watched(Thorough):
        def __init__(self, *args: Any, uses: Callable[[], int], **options: Any) -> None:
            seen.append(uses)
            super().__init__(*args, uses=uses, **options)

    monkeypatch.setattr("cyberkv.cli.scrubbing.Scrub", Watched)
    told: list[str] = []
    monkeypatch.setattr("cyberkv.cli.scrubbing.remark", lambda _, text: told.append(text))
    leaf, sound = leaf_of(story, 2), Cid.parse(leaf_of(story, 1))
    story.damage(leaf)
    session = Session(story.home, as_json=True, quiet=True, verbose=0, progress=False)
    with closing(session), scrubbing(session):
        before = seen[0]()
        session.store.get(sound)
        assert seen[0]() > before
    assert [leaf in text for text in told] == [True]
    assert story.json("stats")["quarantined"] == []


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
