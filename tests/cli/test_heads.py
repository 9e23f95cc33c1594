"""Two programs go on from one name: neither loses what the other recorded."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from cyberkv.cli.names import keep_as
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.runtime import checkpoint as recording
from tests.cli.conftest import Command
from tests.cli.test_serve import start


@pytest.fixture
def other(story: Command) -> str:
    """A root that another program makes the head of `story` meanwhile."""
    root: str = story.json("fork", "story", "--at", 32, "--name", "other")["root"]
    return root


@pytest.fixture
def overtaken(monkeypatch: pytest.MonkeyPatch, other: str) -> Callable[[], None]:
    """From the call on: right before the first root is the head, another program's is."""

    def overtake() -> None:
        original, left = recording.checkpoint, [other]

        def slow(live: Any, **words: Any) -> Cid:
            root = original(live, **words)
            if left:
                live.engine.index.set_head("story", Cid.parse(left.pop()), "2026-01-01T00:00:00Z")
            return root

        monkeypatch.setattr(recording, "checkpoint", slow)

    return overtake


def log(story: Command, name: str) -> list[str]:
    return [each["root"] for each in story.json("log", name)["roots"]]


@pytest.mark.parametrize("line", [("run", "Go on.", "--max-tokens", 4), ("prefill", "-")])
def test_what_was_overtaken_is_kept_under_a_name_of_its_own(
    line: tuple[str, ...], story: Command, other: str, overtaken: Callable[[], None]
) -> None:
    before = story.json("show", "story")["cid"]
    stdin = "and the fog came back" if line[0] == "prefill" else None
    assert story.json(*line, "--from", "story", stdin=stdin)["name"] == "story"  # the control: nobody else was there
    onward = story.json("show", "story")["cid"]
    overtaken()
    done = story("--json", *line, "--from", "story", stdin=stdin)
    assert done.json["name"] == "story-fork"
    assert "story has become something else meanwhile and stays with that; this is kept as story-fork" in done.stderr
    assert log(story, "story") == [before, onward, other]
    assert log(story, "story-fork") == [done.json["root"]]
    node = story.json("show", "story-fork")["node"]
    assert (node["title"], node["parent"], node["fork_at"]) == (
        "story-fork", onward, story.json("show", onward)["node"]["length"]
    )  # fmt: skip


def test_a_dialogue_that_was_overtaken_goes_on_under_its_own_name(
    story: Command, other: str, overtaken: Callable[[], None]
) -> None:
    overtaken()
    said = story("--json", "chat", "story", "--max-tokens", 4, stdin="One\nTwo\n")
    assert [turn["name"] for turn in said.lines] == ["story-fork"] * 2
    assert log(story, "story")[-1] == other
    assert log(story, "story-fork") == [turn["root"] for turn in said.lines]
    assert said.stderr.count("has become something else") == 1


def test_a_new_name_that_was_taken_meanwhile_is_not_taken_over(
    story: Command, other: str, overtaken: Callable[[], None]
) -> None:
    story("forget", "story")
    overtaken()
    assert story.json("run", "Hello", "--name", "story", "--max-tokens", 4)["name"] == "story-2"
    assert log(story, "story") == [other]


def test_an_edit_that_was_overtaken_is_refused(story: Command, other: str, overtaken: Callable[[], None]) -> None:
    overtaken()
    before = log(story, "story")
    error = story.error(5, "evict", "story", "40:50")
    assert (error["field"], error["got"], error["expected"]) == ("head", other, before[-1])
    assert log(story, "story") == [*before, other]


def test_an_edit_within_a_dialogue_that_was_overtaken_ends_it(
    story: Command, other: str, overtaken: Callable[[], None]
) -> None:
    line = ("--json", "chat", "story", "--max-tokens", 4)
    assert story(*line, stdin="One\n/evict 40:50\n").lines[-1]["name"] == "story"  # the control
    overtaken()
    ended = story(*line, stdin="/evict 10:20\n/root\n", ok=False)
    assert (ended.exit_code, ended.json["error"]["got"]) == (5, other)


@pytest.mark.slow
def test_two_processes_that_go_on_at_once_keep_both(story: Command) -> None:
    before = log(story, "story")
    writers = [start(story.home, "run", say, "--from", "story", "--max-tokens", 12) for say in ("North", "South")]
    turns = [json.loads(writer.communicate()[0]) for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0]
    kept = {root for name in {"story", *(turn["name"] for turn in turns)} for root in log(story, name)}
    assert {*before, *(turn["root"] for turn in turns)} == kept
    for turn in turns:
        assert turn["root"] in log(story, turn["name"])


def test_a_name_of_its_own_is_taken_by_one_alone(index: Index) -> None:
    roots = [Cid.of(bytes([number]), "dag-cbor", "sha2-256") for number in range(3)]
    index.set_head("talk", roots[0], "")

    def write(name: str) -> Cid:
        if name == "talk-fork":  # another writer is faster
            index.set_head(name, roots[1], "")
        return roots[2]

    assert keep_as(index, "talk", write, "", expected=None) == ("talk-2", roots[2])
    assert keep_as(index, "talk", write, "", expected=roots[2]) == ("talk-fork-2", roots[2])
    assert index.head("talk").root == roots[0]
