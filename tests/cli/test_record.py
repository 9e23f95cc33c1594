"""`prefill` and `run`: what is recorded, reused and reported."""

import itertools
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cyberkv.cli.context import Session
from cyberkv.cli.rates import FILE_NAME, keep_rate, read_rate
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import TierFull
from cyberkv.runtime.canonical import CHUNK_TOKENS
from cyberkv.runtime.live import Live
from cyberkv.runtime.pace import Pace
from cyberkv.runtime.steps.drafting import PromptLookup
from tests import once
from tests.cli.conftest import STORY, Command

KEYS = {
    "root", "name", "text", "tokens_total", "tokens_reused", "tokens_computed", "blocks_new", "prefill_s",
    "decode_tok_s", "misses", "verdicts", "drafted", "accepted",
}  # fmt: skip


def test_prefill_records_the_text_as_it_is(cyberkv: Command, tmp_path: Path) -> None:
    (tmp_path / "A Story.txt").write_text(STORY)
    figures = cyberkv.json("prefill", tmp_path / "A Story.txt")
    assert set(figures) >= KEYS
    assert figures["name"] == "a-story"
    assert (figures["tokens_total"], figures["tokens_computed"], figures["tokens_reused"]) == (85, 85, 0)
    assert figures["blocks_new"] == 5
    assert figures["text"] == ""
    walked = cyberkv("walk", "a-story", "--json").lines
    assert "".join(block["text"] for block in walked) == STORY[:80]


def test_a_second_prefill_reuses_every_full_block(story: Command) -> None:
    figures = story.json("prefill", "-", stdin=STORY)
    assert (figures["tokens_reused"], figures["tokens_computed"], figures["blocks_new"]) == (80, 5, 0)
    changed = story.json("prefill", "-", stdin=STORY[:40] + "!" + STORY[41:])
    assert (changed["tokens_reused"], changed["tokens_computed"], changed["blocks_new"]) == (32, 53, 3)


def test_run_answers_and_records_prompt_and_answer(cyberkv: Command) -> None:
    figures = cyberkv.json("run", "Tell me a story, please?", "--max-tokens", 20)
    assert set(figures) >= KEYS
    assert figures["name"] == "tell-me-a-story-please"
    # The template adds a role before, and an end and the assistant's role behind.
    assert figures["tokens_total"] == 24 + 3 + figures["tokens_generated"]
    assert figures["tokens_computed"] == figures["tokens_total"]
    assert figures["decode_tok_s"] > 0
    node = cyberkv.json("show", figures["root"])["node"]
    assert (node["length"], node["title"]) == (figures["tokens_total"], figures["name"])


def test_an_answer_that_was_cut_says_so(cyberkv: Command) -> None:
    cut = cyberkv("--json", "run", "Hello", "--max-tokens", 5)
    assert cut.json["finish_reason"] == "length"
    assert "the answer stopped at --max-tokens 5" in cut.stderr
    ended = cyberkv("--json", "run", "Hello", "--max-tokens", 400, "--temperature", 3, "--seed", 1)
    assert ended.json["tokens_generated"] < 400  # the control: here the model ended it
    assert ended.json["finish_reason"] == "stop"
    assert "stopped" not in ended.stderr
    assert "stopped" in cyberkv("chat", "--max-tokens", 5, stdin="Hello\n").stderr


def test_an_answer_that_used_up_the_positions_says_so(cyberkv: Command, add_tiny: Callable[..., Path]) -> None:
    cyberkv("model", "add", add_tiny("short", max_position_embeddings=64, num_hidden_layers=1))
    used_up = cyberkv("--json", "run", "Hello", "--model", "short", "--max-tokens", 400)
    assert (used_up.json["finish_reason"], used_up.json["tokens_total"]) == ("length", 64)
    assert "the answer stopped where the model's positions are used up" in used_up.stderr


def test_a_person_reads_the_answer_on_stdout_and_its_cost_on_stderr(cyberkv: Command) -> None:
    args = ("run", "Hello", "--max-tokens", 5)
    result = cyberkv(*args)
    figures = cyberkv.json(*args)
    assert result.stdout.rstrip("\n") == figures["text"].rstrip("\n")
    assert "root" in result.stderr
    assert cyberkv("-q", *args).stderr == ""


def test_the_same_prompt_gives_the_same_answer_and_other_seeds_others(cyberkv: Command) -> None:
    def text(*options: object) -> str:
        answer: str = cyberkv.json("run", "Hello", "--max-tokens", 12, *options)["text"]
        return answer

    assert text() == text() == text("--seed", 5)
    warm = text("--temperature", 2, "--seed", 1)
    assert warm == text("--temperature", 2, "--seed", 1)
    assert warm != text("--temperature", 2, "--seed", 2)


def test_a_system_message_changes_the_conversation(cyberkv: Command) -> None:
    plain = cyberkv.json("run", "Hello", "--max-tokens", 1)
    told = cyberkv.json("run", "Hello", "--max-tokens", 1, "--system", "Be brief.")
    assert told["tokens_total"] == plain["tokens_total"] + len("Be brief.") + 2
    assert cyberkv.error(2, "run", "x", "--from", "hello", "--system", "y")["kind"] == "usage"


def test_going_on_from_a_head_keeps_its_name(cyberkv: Command) -> None:
    first = cyberkv.json("run", "One", "--max-tokens", 20, "--name", "talk")
    second = cyberkv.json("run", "Two", "--max-tokens", 4, "--from", "talk")
    assert second["name"] == "talk"
    assert second["tokens_total"] == first["tokens_total"] + len("Two") + 4 + second["tokens_generated"]
    assert [each["root"] for each in cyberkv.json("log", "talk")["roots"]] == [first["root"], second["root"]]
    node = cyberkv.json("show", "talk")["node"]
    assert (node["parent"], node["fork_at"]) == (None, None)


def test_going_on_from_an_older_root_is_a_fork(cyberkv: Command) -> None:
    first = cyberkv.json("run", "One", "--max-tokens", 20, "--name", "talk")
    cyberkv("run", "Two", "--max-tokens", 4, "--from", "talk")
    other = cyberkv.json("run", "Three", "--max-tokens", 4, "--from", first["root"])
    assert other["name"] == "three"
    assert other["tokens_reused"] == first["tokens_total"]
    node = cyberkv.json("show", "three")["node"]
    assert (node["parent"], node["fork_at"]) == (first["root"], first["tokens_total"])
    named = cyberkv.json("run", "Four", "--max-tokens", 1, "--from", "talk", "--name", "aside")
    assert cyberkv.json("show", "aside")["node"]["parent"] == cyberkv.json("show", "talk")["cid"]
    assert named["name"] == "aside"


def test_prefill_goes_on_from_a_conversation(story: Command) -> None:
    more = " Nobody came."
    figures = story.json("prefill", "-", "--from", "story", stdin=more)
    assert (figures["name"], figures["tokens_total"]) == ("story", 85 + len(more))
    whole = story.json("prefill", "-", stdin=STORY + more)
    assert story.json("diff", "story", whole["root"])["common_tokens"] == 85 + len(more)
    assert (whole["tokens_reused"], whole["blocks_new"]) == (96, 0)


def test_names_are_made_unique(cyberkv: Command) -> None:
    names = [cyberkv.json("run", "Hello!", "--max-tokens", 1)["name"] for _ in range(3)]
    assert names == ["hello", "hello-2", "hello-3"]


@pytest.mark.parametrize("name", ["a\nb", "--json", "-x", "../../x", "bafyreib", "x" * 256, ""])
def test_a_bad_name_is_refused_before_anything_is_computed(cyberkv: Command, name: str) -> None:
    error = cyberkv.error(2, "run", "Hello", f"--name={name}")
    assert (error["kind"], bool(error["hint"])) == ("bad-reference", True)
    assert cyberkv.json("stats")["nodes"] == 1


def test_a_name_that_moves_to_another_conversation_says_so(story: Command) -> None:
    before = story.json("show", "story")["cid"]
    result = story("prefill", "-", "--name", "story", stdin="Something else.")
    assert f"story names {before} so far" in result.stderr
    assert story.json("log", "story")["roots"][0]["root"] == before
    result = story("fork", "story", "--at", 3, "--name", "story")
    assert "`cyberkv log story` keeps both" in result.stderr
    # The controls: a name that goes on, or is new, has nothing to say.
    for line in (["--from", "story"], ["--from", "story", "--name", "story"], ["--name", "new"]):
        assert "so far" not in story("prefill", "-", *line, stdin="More.").stderr


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e999"])
def test_a_temperature_is_a_finite_number(cyberkv: Command, value: str) -> None:
    assert cyberkv.error(2, "run", "Hello", "--temperature", value)["kind"] == "usage"
    assert cyberkv.json("list")["conversations"] == []


def test_the_least_temperature_is_greedy(cyberkv: Command) -> None:
    cold = cyberkv.json("run", "Hello", "--max-tokens", 5, "--temperature", "5e-324")
    assert cold["text"] == cyberkv.json("run", "Hello", "--max-tokens", 5)["text"]


def test_a_home_without_a_model_is_said_before_torch_loads(tmp_path: Path) -> None:
    script = f"""
import sys
from cyberkv.cli.main import cli
for line in (["run", "Hi"], ["prefill", {str(Path(__file__))!r}], ["chat"], ["run", "Hi", "--model", "x"]):
    try:
        cli.main(["--home", {str(tmp_path / "none")!r}, *line])
    except SystemExit as done:
        assert done.code == 3, (line, done.code)
    assert "torch" not in sys.modules, line
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\nhint: ") == 4
    assert "torch" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_several_models_need_a_choice(cyberkv: Command, add_tiny: Callable[..., Path]) -> None:
    cyberkv("model", "add", add_tiny("other", seed=1))
    assert "other, tiny" in cyberkv.error(2, "run", "Hello")["message"]
    one = cyberkv.json("run", "Hello", "--max-tokens", 20, "--model", "other")
    two = cyberkv.json("run", "Hello", "--max-tokens", 20, "--model", "tiny")
    assert one["model"] != two["model"]
    assert two["tokens_reused"] == 0
    # A conversation goes on with its own model.
    assert cyberkv.json("run", "Hello", "--max-tokens", 1, "--from", one["root"])["model"] == one["model"]
    error = cyberkv.error(5, "run", "Hello", "--from", one["root"], "--model", "tiny")
    assert (error["kind"], error["field"]) == ("identity-mismatch", "weights")


def test_a_conversation_of_an_absent_model_names_what_differs(
    story: Command, tiny_folder: Path, first_home: Path
) -> None:
    (story.home / "models" / "tiny.json").unlink()
    story("model", "add", tiny_folder, "--name", "wide", "--block-size", 32)
    error = story.error(5, "run", "Hello", "--from", "story")
    assert (error["field"], error["expected"], error["got"]) == ("block_size", 16, 32)


def test_a_model_without_tokenizer_takes_no_text(cyberkv: Command, add_tiny: Callable[..., Path]) -> None:
    folder = add_tiny("mute", seed=2)
    (folder / "tokenizer.json").unlink()
    cyberkv("model", "add", folder)
    error = cyberkv.error(5, "run", "Hello", "--model", "mute")
    assert (error["kind"], error["field"]) == ("unsupported-model", "tokenizer")


@pytest.mark.parametrize("stdin", [b"", b"\xff\xfe\xff"])
def test_what_is_not_text_is_a_usage_error(cyberkv: Command, stdin: bytes) -> None:
    assert cyberkv("prefill", "-", stdin=stdin, ok=False).exit_code == 2


def test_a_damaged_leaf_is_a_miss_with_its_name_and_no_wedge(story: Command) -> None:
    block = story("walk", "story", "--json").lines[2]["cid"]
    [leaf] = story.json("show", block)["node"]["kv"]
    story.damage(leaf)
    assert [each["cid"] for each in story("fsck", "--json", ok=False).json["findings"]] == [leaf]
    figures = story.json("prefill", "-", stdin=STORY)
    assert (figures["tokens_reused"], figures["tokens_computed"]) == (32, 53)
    assert [(miss["position_start"], miss["cid"]) for miss in figures["misses"]] == [(32, leaf)]
    # Computed again, the block is the same; a control is untouched by all this.
    assert story.json("prefill", "-", stdin=STORY)["tokens_reused"] == 80
    assert story("fsck").exit_code == 0


def test_the_speed_of_a_long_prefill_is_kept_for_the_next_command(
    cyberkv: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = cyberkv.json("prefill", "-", "--name", "short", stdin=STORY)["model"]
    assert read_rate(cyberkv.home, Cid.parse(model)) is None
    clock = itertools.count(step=0.5)
    monkeypatch.setattr(Session, "clock_s", lambda _: next(clock))
    cyberkv("prefill", "-", "--name", "long", stdin=LONG)
    assert read_rate(cyberkv.home, Cid.parse(model)) == len(LONG) / 0.5
    (cyberkv.home / FILE_NAME).write_text('{"prefill_tokens_s": [')
    assert cyberkv.json("prefill", "-", "--name", "short", stdin=STORY)["tokens_reused"] == 80
    assert read_rate(cyberkv.home, Cid.parse(model)) is None


def test_what_loads_too_slowly_is_computed_and_said(story: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=0.5)
    monkeypatch.setattr(Session, "clock_s", lambda _: next(clock))
    monkeypatch.setattr(Pace, "first_blocks", lambda *_: 1)
    loaded = story.json("prefill", "-", "--name", "loaded", stdin=STORY)
    assert (loaded["tokens_reused"], loaded["misses"]) == (80, [])  # the control: no speed is known
    keep_rate(story.home, Cid.parse(loaded["model"]), 1e6)
    computed = story.json("prefill", "-", "--name", "computed", stdin=STORY)
    assert (computed["tokens_reused"], computed["tokens_computed"]) == (16, 69)
    [miss] = computed["misses"]
    assert (miss["position_start"], "times as long as computing" in miss["reason"]) == (16, True)
    assert computed["root"] != loaded["root"]  # another title
    assert story.json("diff", "loaded", "computed")["parts_at"] is None
    assert "at token 16: loading takes" in story("prefill", "-", "--name", "again", stdin=STORY).stdout


LONG = "The sea was calm and the night was long, and nobody spoke for a while. " * 20


def interrupt_at(monkeypatch: pytest.MonkeyPatch, method: str, call: int) -> None:
    """Let Ctrl-C arrive in the middle of the given call of a method of `Live`."""
    original, calls = getattr(Live, method), itertools.count()

    def interrupted(*args: Any, **options: Any) -> Any:
        if next(calls) == call:
            signal.raise_signal(signal.SIGINT)
        return original(*args, **options)

    monkeypatch.setattr(Live, method, interrupted)


def test_ctrl_c_between_tokens_records_the_answer_so_far(cyberkv: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = cyberkv.json("run", "Hello", "--max-tokens", 9, "--name", "whole")
    interrupt_at(monkeypatch, "decode", 3)
    result = cyberkv("run", "Hello", "--max-tokens", 9, "--name", "part", "--json", ok=False)
    assert result.exit_code == 130
    part = result.json
    assert (part["interrupted"], whole["interrupted"]) == (True, False)
    assert (part["finish_reason"], whole["finish_reason"]) == (None, "length")
    assert (part["tokens_generated"], whole["tokens_generated"]) == (4, 9)
    assert whole["text"].startswith(part["text"].rstrip("\ufffd"))
    assert cyberkv.json("show", "part")["cid"] == part["root"]
    assert cyberkv.json("diff", "whole", "part")["common_tokens"] == part["tokens_total"]
    assert cyberkv("fsck").exit_code == 0


def test_a_failure_between_tokens_is_told_and_the_answer_so_far_recorded(
    cyberkv: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = cyberkv.json("run", "Hello", "--max-tokens", 9, "--name", "whole")
    decode, calls = Live.decode, itertools.count()

    def failing(*args: Any, **options: Any) -> Any:
        if next(calls) == 3:
            raise TierFull("no room for a block", hint="free some space")
        return decode(*args, **options)

    monkeypatch.setattr(Live, "decode", failing)
    error = cyberkv.error(8, "run", "Hello", "--max-tokens", 9, "--name", "part")
    assert error["message"] == "no room for a block"
    calls = itertools.count()
    again = cyberkv("run", "Hello", "--max-tokens", 9, "--name", "again", ok=False)
    assert again.stdout.endswith("\n")
    assert again.stderr.startswith("error: no room")
    part = cyberkv.json("show", "part")
    assert part["node"]["length"] == whole["tokens_total"] - whole["tokens_generated"] + 3
    assert cyberkv.json("diff", "whole", "part")["common_tokens"] == part["node"]["length"]
    assert cyberkv("fsck").exit_code == 0


def test_a_failure_before_anything_was_computed_records_nothing(
    cyberkv: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise TierFull("no room for a block")

    monkeypatch.setattr(Live, "_prefill", failing)
    assert cyberkv.error(8, "run", "Hello")["message"] == "no room for a block"
    assert cyberkv.json("list")["conversations"] == []


def test_ctrl_c_while_prefilling_records_whole_chunks(cyberkv: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at(monkeypatch, "_prefill", 0)
    result = cyberkv("prefill", "-", "--name", "long", "--json", stdin=LONG, ok=False)
    assert result.exit_code == 130
    assert (result.json["tokens_total"], result.json["interrupted"]) == (CHUNK_TOKENS, True)
    whole = cyberkv.json("prefill", "-", "--name", "long", stdin=LONG)
    assert (whole["tokens_reused"], whole["tokens_total"]) == (CHUNK_TOKENS, len(LONG))


def test_ctrl_c_in_a_chat_ends_it_and_keeps_the_turn(cyberkv: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at(monkeypatch, "decode", 5)
    result = cyberkv("chat", "--max-tokens", 4, "--json", stdin="One\nTwo\nThree\n", ok=False)
    assert result.exit_code == 130
    assert [turn["interrupted"] for turn in result.lines] == [False, True]
    assert cyberkv.json("show", "chat")["cid"] == result.lines[1]["root"]
    assert "kept as chat" in result.stderr


REPEATING = "One ship, two ships. One ship, two ships. One ship, two ships."


def test_an_answer_does_not_depend_on_drafts(cyberkv: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = cyberkv.json("run", REPEATING, "--max-tokens", 40, "--name", "plain")
    drafted = cyberkv.json("run", REPEATING, "--max-tokens", 40, "--name", "drafted", "--draft", "ngram")
    assert drafted["text"] == plain["text"]
    assert cyberkv.json("diff", "plain", "drafted")["parts_at"] is None
    assert drafted["drafted"] >= drafted["accepted"]
    assert drafted["drafted"] > 0
    assert (plain["drafted"], plain["accepted"]) == (0, 0)
    # The control: a drafter that knows the answer is right about all of it, and one that knows nothing about none.
    tokens = [token for block in cyberkv("walk", "plain", "--json").lines for token in block["tokens"]]
    for known, right in ((tokens, True), ([7] * len(tokens), False)):
        monkeypatch.setattr(PromptLookup, "__call__", lambda _, so_far, known=known: list(known[len(so_far) :]))
        guessed = cyberkv.json("run", REPEATING, "--max-tokens", 20, "--draft", "ngram")
        assert plain["text"].startswith(guessed["text"].rstrip("\ufffd"))
        assert (guessed["accepted"] > 10) == right
        assert (guessed["accepted"] == guessed["drafted"]) == right


def test_what_cannot_be_drafted_says_so(cyberkv: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cyberkv.error(2, "run", "Hello", "--draft", "ngram", "--select", "recent")["kind"] == "usage"
    assert "nothing is drafted" not in cyberkv("run", REPEATING, "--max-tokens", 4, "--draft", "ngram").stderr
    monkeypatch.setattr("cyberkv.runtime.canonical.try_shared_steps", lambda *_: False)
    monkeypatch.setattr("cyberkv.runtime.engine.build_engine", once.build_engine)
    result = cyberkv("--json", "run", REPEATING, "--max-tokens", 4, "--draft", "ngram")
    assert "nothing is drafted here: rows of two conversations" in result.stderr
    assert result.json["drafted"] == 0


def test_blocks_that_were_here_are_not_new(cyberkv: Command) -> None:
    for options in ((), ("--draft", "ngram")):
        prompt = f"{REPEATING} {options}"
        first = cyberkv.json("run", prompt, "--max-tokens", 40, *options)
        again = cyberkv.json("run", prompt, "--max-tokens", 40, *options)
        assert first["blocks_new"] == first["tokens_total"] // 16 - first["tokens_reused"] // 16
        assert (again["blocks_new"], again["tokens_total"]) == (0, first["tokens_total"])
        assert again["tokens_reused"] < again["tokens_total"]  # the answer was computed, and gave blocks that were here


def test_an_interrupted_prefill_says_what_was_kept(cyberkv: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "interrupted" not in cyberkv("prefill", "-", "--name", "short", stdin=STORY).stderr  # the control
    interrupt_at(monkeypatch, "_prefill", 0)
    result = cyberkv("prefill", "-", "--name", "long", stdin=LONG, ok=False)
    assert result.exit_code == 130
    assert f"{CHUNK_TOKENS:,} of {len(LONG):,} tokens are recorded as long" in result.stderr
