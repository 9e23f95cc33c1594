"""`chat`: a dialogue over a pipe."""

import pexpect
import pytest

from cyberkv.cli.text import plain
from tests.cli.conftest import Command
from tests.cli.terminal import on_terminal

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


def test_the_end_says_where_the_dialogue_is_kept(cyberkv: Command) -> None:
    for script in ("Hello\n/quit\nnever\n", "Hello\n"):
        result = cyberkv("--json", "chat", *SHORT, stdin=script)
        [turn] = result.lines
        assert result.stderr.splitlines()[-1] == f"kept as {turn['name']} {turn['root']}"
    assert cyberkv("chat", stdin="/quit\n").stderr.splitlines()[-1] == "nothing was recorded"


def test_a_chat_goes_on_from_a_conversation(cyberkv: Command) -> None:
    cyberkv("run", "Hello", *SHORT, "--name", "talk")
    before = cyberkv.json("show", "talk")["cid"]
    [turn] = cyberkv("--json", "chat", "talk", *SHORT, stdin="And?\n").lines
    assert (turn["name"], turn["root"]) == ("talk", cyberkv.json("show", "talk")["cid"])
    assert turn["root"] != before
    assert cyberkv.error(2, "chat", "talk", "--system", "x")["kind"] == "usage"


def test_fork_goes_on_in_a_copy(cyberkv: Command) -> None:
    script = "Hello\n/root\n/fork 4\n/root\nAnother way\n/fork\n/fork 9999\n/fork x\n"
    first, root, forked, turn = cyberkv("--json", "chat", *SHORT, stdin=script).lines
    assert root == {"root": first["root"], "name": "chat"}
    assert forked["name"] == turn["name"] == "chat-fork"
    names = {each["name"]: each for each in cyberkv.json("list")["conversations"]}
    assert set(names) == {"chat", "chat-fork", "chat-fork-fork"}
    assert names["chat"]["root"] == first["root"]
    assert names["chat-fork"]["root"] == turn["root"]
    assert (names["chat-fork"]["parent"], names["chat-fork"]["fork_at"]) == (first["root"], 4)
    assert cyberkv.json("diff", "chat", "chat-fork")["common_tokens"] >= 4
    assert cyberkv("fsck").exit_code == 0


def test_publish_is_asked_for_and_without_a_terminal_refused(cyberkv: Command) -> None:
    result = cyberkv("--json", "chat", *SHORT, stdin="/publish\nHello\n/publish\nMore\n")
    assert [turn["name"] for turn in result.lines] == ["chat", "chat"]  # the dialogue went on
    assert "nothing is recorded yet" in result.stderr
    assert "This becomes readable by anyone" in result.stderr
    assert "no terminal to ask on" in result.stderr
    assert cyberkv.json("stats")["published"] == 0


def test_publish_shows_the_dialogue_and_asks(cyberkv: Command) -> None:
    line = ["--home", cyberkv.home, "--no-progress", "chat", *SHORT]
    with on_terminal(line) as (child, process):
        child.expect("> ")
        child.sendline("Hello")
        for reply in ("n", "y"):
            child.expect("> ")
            [kept] = cyberkv.json("list")["conversations"]
            assert not kept["public"]
            child.sendline("/publish")
            child.expect(r"Publish it\? \[y/N\]: ")
            child.sendline(reply)
        child.expect("> ")
        child.sendline("/quit")
        child.expect(pexpect.EOF)
    assert process.returncode == 0
    [kept] = cyberkv.json("list")["conversations"]
    assert kept["public"]


@pytest.mark.parametrize("stdin", [b"\xff\n", b"Hello\n\xff\n"])
def test_a_line_that_is_not_text_ends_it_and_keeps_what_came_before(cyberkv: Command, stdin: bytes) -> None:
    assert cyberkv("chat", *SHORT, stdin=stdin, ok=False).exit_code == 2
    assert len(cyberkv.json("list")["conversations"]) == stdin.count(b"Hello")


def test_an_unknown_word_explains_the_known_ones(cyberkv: Command) -> None:
    result = cyberkv("chat", stdin="/help\n")
    assert result.stdout == ""
    assert result.stderr.count("/fork [TOKEN]") == 2
    assert "there is no" not in result.stderr
    assert "there is no /nosuch; /undo takes" in cyberkv("chat", stdin="/nosuch\n").stderr
    assert cyberkv.json("list")["conversations"] == []


def test_a_turn_that_was_taken_back_was_never_there(cyberkv: Command) -> None:
    turns = cyberkv("--json", "chat", *SHORT, stdin="Hello\nMistake\n/undo\nAnd then?\n").lines
    assert turns[2]["root"] != turns[1]["root"]  # within a second of the first turn, it is that one's again
    straight = cyberkv("--json", "chat", *SHORT, "--name", "straight", stdin="Hello\nAnd then?\n").lines
    assert turns[3]["text"] == straight[1]["text"]
    assert cyberkv.json("diff", "chat", "straight")["parts_at"] is None
    kept = cyberkv("--json", "chat", *SHORT, "--name", "kept", stdin="Hello\nMistake\nAnd then?\n").lines
    assert cyberkv.json("diff", "chat", "kept")["parts_at"] is not None  # the control
    assert kept[2]["tokens_total"] > turns[3]["tokens_total"]
    assert [each["root"] for each in cyberkv.json("log", "chat")["roots"]] == [turn["root"] for turn in turns]
    assert cyberkv("fsck").exit_code == 0


def test_the_first_turn_can_be_taken_back(cyberkv: Command) -> None:
    result = cyberkv("--json", "chat", *SHORT, "--system", "Be kind.", stdin="/undo\nMistake\n/undo\n/undo\nHello\n")
    assert result.stderr.count("chat has no turn of this session to take back") == 2
    assert "taken back: 'Mistake' and the answer" in result.stderr
    assert "back at the beginning" in result.stderr
    cyberkv("run", "Hello", *SHORT, "--system", "Be kind.", "--name", "straight")
    assert cyberkv.json("diff", "chat", "straight")["parts_at"] is None


def test_what_was_taken_back_and_what_stands_is_said(cyberkv: Command) -> None:
    result = cyberkv("chat", *SHORT, stdin="Hello\nMistake\n/undo\n")
    first, undone = (each for at, each in enumerate(cyberkv.json("log", "chat")["roots"]) if at != 1)
    assert f"chat has {first['tokens']} tokens now: {undone['root']}" in result.stderr
    assert "taken back: 'Mistake' and the answer" in result.stderr
    assert undone["root"] not in result.stdout


def test_turns_are_taken_back_in_a_fork(cyberkv: Command) -> None:
    script = "Hello\nMistake\n/fork\n/undo\nAnd then?\n/fork 5\n/undo\n/undo\n"
    result = cyberkv("--json", "chat", *SHORT, stdin=script)
    first, mistake, undone, went_on = result.lines
    assert (undone["name"], went_on["name"]) == ("chat-fork", "chat-fork")
    assert cyberkv.json("log", "chat")["roots"][-1]["root"] == mistake["root"]  # the original stays
    shown = cyberkv.json("show", undone["root"])["node"]
    assert (shown["length"], shown["fork_at"]) == (first["tokens_total"], first["tokens_total"])
    assert "taken back: 'Hello' and the answer, 5 tokens; back at the beginning" in result.stderr
    assert result.stderr.count("has no turn of this session to take back") == 1
    straight = cyberkv("--json", "chat", *SHORT, "--name", "straight", stdin="Hello\nAnd then?\n").lines
    assert straight[1]["text"] == went_on["text"]
    assert cyberkv("fsck").exit_code == 0


def test_what_is_left_of_a_turn_can_be_taken_back(cyberkv: Command) -> None:
    first, *_ = cyberkv("--json", "chat", *SHORT, "--name", "measure", stdin="Hello\n").lines
    at = first["tokens_total"]
    script = f"Hello\nMistake\n/evict {at - 1}:{at + 3}\n/undo\n/undo\n"
    result = cyberkv("--json", "chat", *SHORT, stdin=script)
    assert cyberkv.json("show", result.lines[-1]["root"])["node"]["length"] == at - 1
    assert "taken back: 'Hello'" in result.stderr
    whole = cyberkv("--json", "chat", *SHORT, "--name", "whole", stdin=f"Hello\n/evict 0:{at}\n/undo\n")
    assert "whole has no turn of this session to take back" in whole.stderr  # the control


def test_tokens_are_taken_out_of_a_dialogue(cyberkv: Command) -> None:
    script = "Hello there\n/evict 3:8\nAnd then?\n/evict 9999:10000\n/evict x\n/evict\n/undo\nMore\n"
    result = cyberkv("--json", "chat", *SHORT, stdin=script)
    first, evicted, second, undone, last = result.lines
    assert evicted["receipt"]["exact"]
    assert evicted["receipt"]["dropped_tokens"] == 5
    generated = second["tokens_generated"] - first["tokens_generated"]
    assert second["tokens_total"] == first["tokens_total"] - 5 + len("And then?") + 4 + generated
    assert result.stderr.count("/evict takes START:END") == 3
    assert cyberkv.json("show", undone["root"])["node"]["length"] == first["tokens_total"] - 5
    assert [each["root"] for each in cyberkv.json("log", "chat")["roots"]] == [turn["root"] for turn in result.lines]
    # The same by commands, and the control: without the eviction it is another conversation.
    cyberkv("run", "Hello there", *SHORT, "--name", "steps")
    cyberkv("evict", "steps", "3:8")
    assert cyberkv.json("run", "More", *SHORT, "--from", "steps")["text"] == last["text"]
    assert cyberkv.json("diff", "chat", "steps")["parts_at"] is None
    assert cyberkv.json("diff", "chat", first["root"])["common_tokens"] == 3
    assert "nothing is recorded yet" in cyberkv("chat", *SHORT, stdin="/evict 0:1\n").stderr


def test_a_dialogue_can_be_drafted(cyberkv: Command) -> None:
    lines = "One ship, two ships. One ship, two ships.\n/fork\nOne ship, two ships. One ship\n"
    plain = cyberkv("--json", "chat", "--max-tokens", 30, stdin=lines).lines
    drafted = cyberkv("--json", "chat", "--max-tokens", 30, "--name", "d", "--draft", "ngram", stdin=lines).lines
    assert [turn.get("text") for turn in drafted] == [turn.get("text") for turn in plain]
    assert all(turn["drafted"] > 0 for turn in drafted if "text" in turn)
    assert all(turn["drafted"] == 0 for turn in plain if "text" in turn)
