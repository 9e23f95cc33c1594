"""`chat`: a dialogue over a pipe."""

from cyberkv.cli.text import plain
from tests.cli.conftest import Command

SHORT = ("--max-tokens", 6)


def test_each_line_is_a_turn_and_each_turn_a_root(cyberkv: Command) -> None:
    turns = cyberkv("--json", "chat", *SHORT, stdin="Hello\n\nHow are you?\n").lines
    assert len(turns) == 2
    assert turns[0]["name"] == turns[1]["name"] == "chat"
    assert turns[1]["tokens_total"] > turns[0]["tokens_total"]
    assert [each["root"] for each in cyberkv.json("log", "chat")["roots"]] == [turn["root"] for turn in turns]


def test_a_dialogue_is_the_same_as_runs_that_go_on(cyberkv: Command) -> None:
    turns = cyberkv("--json", "chat", *SHORT, "--system", "Be kind.", stdin="Hello\nAnd then?\n").lines
    first = cyberkv.json("run", "Hello", *SHORT, "--system", "Be kind.", "--name", "runs")
    second = cyberkv.json("run", "And then?", *SHORT, "--from", "runs")
    assert [turn["text"] for turn in turns] == [first["text"], second["text"]]
    assert cyberkv.json("diff", "chat", "runs")["parts_at"] is None


def test_a_person_sees_only_answers_on_stdout(cyberkv: Command) -> None:
    turns = cyberkv("--json", "chat", *SHORT, stdin="Hello\nMore\n").lines
    result = cyberkv("chat", *SHORT, stdin="Hello\nMore\n/quit\nnever\n")
    assert result.stdout.split() == plain("\n".join(turn["text"] for turn in turns)).split()
    assert "/quit" in result.stderr
    assert cyberkv("-q", "chat", *SHORT, stdin="Hello\n").stderr == ""


def test_a_chat_goes_on_from_a_conversation(cyberkv: Command) -> None:
    cyberkv("run", "Hello", *SHORT, "--name", "talk")
    before = cyberkv.json("show", "talk")["cid"]
    [turn] = cyberkv("--json", "chat", "talk", *SHORT, stdin="And?\n").lines
    assert (turn["name"], turn["root"]) == ("talk", cyberkv.json("show", "talk")["cid"])
    assert turn["root"] != before
    assert cyberkv.error(2, "chat", "talk", "--system", "x")["kind"] == "usage"


def test_fork_goes_on_in_a_copy(cyberkv: Command) -> None:
    script = "Hello\n/root\n/fork 4\n/root\nAnother way\n/fork\n/fork 9999\n/fork x\n/publish\n"
    first, root, forked, turn, command = cyberkv("--json", "chat", *SHORT, stdin=script).lines
    assert root == {"root": first["root"], "name": "chat"}
    assert forked["name"] == turn["name"] == "chat-fork"
    names = {each["name"]: each for each in cyberkv.json("list")["conversations"]}
    assert set(names) == {"chat", "chat-fork", "chat-fork-fork"}
    assert names["chat"]["root"] == first["root"]
    assert names["chat-fork"]["root"] == turn["root"]
    assert (names["chat-fork"]["parent"], names["chat-fork"]["fork_at"]) == (first["root"], 4)
    assert command == {"command": "cyberkv publish chat-fork-fork --public"}
    assert cyberkv.json("diff", "chat", "chat-fork")["common_tokens"] >= 4
    assert cyberkv("fsck").exit_code == 0


def test_an_unknown_word_explains_the_known_ones(cyberkv: Command) -> None:
    result = cyberkv("chat", stdin="/help\n")
    assert result.stdout == ""
    assert result.stderr.count("/fork [TOKEN]") == 2
    assert cyberkv.json("list")["conversations"] == []
