"""A command that recorded something says so, whenever a Ctrl-C comes; one that did not says that."""

import signal
from collections.abc import Callable
from typing import Any

import pytest

from cyberkv.cli import editing, fork, splice
from cyberkv.cli.context import Session
from cyberkv.cybergraph.index import Index
from cyberkv.runtime.live import Live
from cyberkv.runtime.splice import encoder
from tests.cli.conftest import STORY, Command
from tests.numerics.test_retrieval import WordEncoder

Interrupt = Callable[[Any, str], None]
SHORT = ("--max-tokens", 2)


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Interrupt:
    """Have a Ctrl-C come, twice, as soon as a function has done its work."""

    def after(owner: Any, name: str) -> None:
        done = getattr(owner, name)

        def wrapped(*args: Any, **options: Any) -> Any:
            result = done(*args, **options)
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            return result

        monkeypatch.setattr(owner, name, wrapped)

    return after


def head_of(command: Command, name: str) -> str:
    return str({each["name"]: each["root"] for each in command.json("list")["conversations"]}[name])


CHANGES = [
    ("evict", "story", "60:85", "--mode", "rollback"),
    ("evict", "story", "60:70"),
    ("fork", "story", "--at", "20", "--name", "made"),
    ("reblock", "story", "--block-size", "32", "--name", "made"),
    ("splice", "story", "story", "--name", "made"),
]


@pytest.mark.parametrize("line", CHANGES)
def test_a_change_that_was_made_is_told(line: tuple[str, ...], story: Command, interrupt: Interrupt) -> None:
    interrupt(Index, "advance")
    result = story("--json", *line, ok=False)
    assert result.exit_code == 130
    assert result.json["root"] == head_of(story, result.json["name"])
    assert "the change was made" in result.stderr


@pytest.mark.parametrize(
    ("line", "owner", "name"), [(CHANGES[0], editing, "fork_root"), (CHANGES[1], editing, "require_still"),
                                (CHANGES[2], fork, "fork_root"), (CHANGES[4], splice, "model_of")],
)  # fmt: skip
def test_a_change_that_was_not_made_is_not_told(
    line: tuple[str, ...], owner: Any, name: str, story: Command, interrupt: Interrupt
) -> None:
    before = story.json("list")
    interrupt(owner, name)
    assert story.error(130, *line)["hint"] == "nothing was changed"
    assert story.json("list") == before


@pytest.mark.parametrize("line", [("prefill", "-"), ("run", STORY, *SHORT)])
def test_what_was_recorded_is_told(line: tuple[str, ...], cyberkv: Command, interrupt: Interrupt) -> None:
    interrupt(Index, "advance")
    result = cyberkv(*line, "--name", "made", stdin=STORY, ok=False)
    assert result.exit_code == 130
    assert head_of(cyberkv, "made") in result.stdout + result.stderr
    [kept] = cyberkv.json("list")["conversations"]
    tokens = kept["tokens"]
    assert f"{'all of ' * (line[0] == 'prefill')}{tokens} tokens are recorded as made; the same" in result.stderr


@pytest.mark.parametrize(("name", "is_made"), [("advance", True), ("append", False)])
def test_a_document_is_made_and_told_or_neither(
    name: str, is_made: bool, cyberkv: Command, interrupt: Interrupt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "open_encoder", WordEncoder)
    interrupt(Index if is_made else Live, name)
    result = cyberkv("--json", "document", "add", "-", "--name", "made", stdin=STORY, ok=False)
    assert result.exit_code == 130
    documents = cyberkv.json("document", "list")["documents"]
    assert [each["name"] for each in documents] == ["made"] * is_made
    if is_made:
        assert result.json["root"] == documents[0]["root"] == head_of(cyberkv, "made")
        assert "the change was made" in result.stderr
    else:
        assert result.json["error"]["hint"] == "nothing was changed"
        assert cyberkv.json("list")["conversations"] == []


def test_what_was_prefilled_again_to_be_published_is_told(story: Command, interrupt: Interrupt) -> None:
    story("mark", "story", "--public", ":20", "--public", "30:", "--private", "20:30")
    before = {each["name"] for each in story.json("list")["conversations"]}
    interrupt(Index, "advance")
    result = story("publish", "story", "--public", "--yes", "--reprefill", ok=False)
    assert result.exit_code == 130
    [name] = {each["name"] for each in story.json("list")["conversations"]} - before
    assert f"tokens without the private ones as {name}" in result.stderr
    assert story.json("mark", name)["public_tokens"] == len(STORY) - 10
    with Index(story.home / "index") as index:
        assert index.published() == []


def test_what_was_taken_out_in_a_dialogue_is_told(story: Command, interrupt: Interrupt) -> None:
    interrupt(Index, "advance")
    result = story("--json", "chat", "story", stdin="/evict 60:70\nnever asked\n", ok=False)
    assert result.exit_code == 130
    [told] = result.lines
    assert told["receipt"]["dropped_tokens"] == 10
    assert f"kept as story {head_of(story, 'story')}" in result.stderr


def test_the_seconds_of_a_prefill_that_was_stopped_are_counted(
    cyberkv: Command, interrupt: Interrupt, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = [0.0]
    monkeypatch.setattr(Session, "clock_s", lambda _: clock_s[0])
    append = Live.append

    def slowly(*args: Any, **options: Any) -> None:
        append(*args, **options)
        clock_s[0] += 5

    monkeypatch.setattr(Live, "append", slowly)
    interrupt(Live, "append")
    figures = cyberkv("--json", "prefill", "-", stdin=STORY, ok=False).json
    assert (figures["tokens_computed"], figures["interrupted"], figures["prefill_s"]) == (len(STORY), True, 5)


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_prompt_is_refused(text: str, cyberkv: Command) -> None:
    assert "the prompt is empty" in cyberkv.error(2, "run", text)["message"]
    assert cyberkv.json("list")["conversations"] == []


def test_an_empty_prompt_goes_on_from_a_conversation(story: Command) -> None:
    assert story.json("run", "", "--from", "story", *SHORT)["tokens_generated"] > 0


def test_an_empty_text_is_called_that(story: Command) -> None:
    assert story.error(2, "find", "")["message"] == "TEXT is empty"
    assert "give one of" in story.error(2, "find")["message"]


def test_documents_are_looked_for_before_a_model_is_loaded(story: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(*_: Any) -> None:
        pytest.fail("a model was loaded")

    monkeypatch.setattr(splice, "open_bench", loaded)
    assert "none" in story.error(3, "splice", "story", "none")["message"]
    assert story.error(3, "splice", "story", "story", "none:1:2")["kind"] == "name-not-found"
