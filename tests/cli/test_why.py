"""`why`: verdicts, and for a miss the field or block that is to blame."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from cyberkv.cli.rates import keep_rate
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.nodes import Block
from cyberkv.cybergraph.store import DiskStore
from tests.cli.conftest import STORY, Command


@pytest.fixture
def story_file(tmp_path: Path) -> Path:
    path = tmp_path / "story.txt"
    path.write_text(STORY)
    return path


def verdicts(answer: dict[str, list[dict[str, str]]]) -> list[str]:
    return [each["verdict"] for each in answer["verdicts"]]


def answer_root(command: Command) -> str:
    """Give the root that the story had first."""
    return str(command.json("log", "story")["roots"][0]["root"])


def test_what_is_recorded_hits(story: Command, story_file: Path) -> None:
    answer = story.json("why", story_file)
    assert verdicts(answer) == ["HIT"] * 5
    assert (answer["hits"], answer["tail_tokens"], answer["reason"]) == (5, 5, None)
    walked = [block["cid"] for block in story("walk", "story", "--json").lines]
    assert [each["cid"] for each in answer["verdicts"]] == walked
    assert {(each["load_bytes"], each["tier"]) for each in answer["verdicts"]} == {(16 * 768, "L2")}
    assert story.json("why", "-", "--model", "tiny")["verdicts"] == []
    assert "5 of 5 blocks hit" in story("why", story_file).stdout


def test_loading_is_weighed_against_computing(story: Command, story_file: Path) -> None:
    measured = story.json("why", story_file)
    assert measured["load_bytes_s"] > 0
    assert all(each["load_s"] > 0 and each["compute_s"] is None for each in measured["verdicts"])
    # A block is 12,288 bytes and 16 tokens: at 98,304 bit/s it takes a second to load, at 16 tokens/s to compute.
    for speed, verdict in ((16, "HIT"), (17, "RECOMPUTE")):
        line = ("why", story_file, "--link", 0.098304, "--prefill-tok-s", speed)
        answer = story.json(*line)
        assert verdicts(answer) == [verdict] * 5
        assert {(each["load_s"], each["compute_s"]) for each in answer["verdicts"]} == {(1.0, 16 / speed)}
        assert (answer["hits"], bool(answer["reason"])) == ((5, False) if verdict == "HIT" else (0, True))
        first = story(*line).stdout.splitlines()[0]
        assert first.split()[:3] == ["0-4", "0", verdict]
        assert "load 60.0 KiB 5.00 s" in first
        assert f"compute {'5.00 s' if speed == 16 else '4.71 s'}" in first
    for option in ("--link", "--prefill-tok-s"):
        assert story.error(2, "why", story_file, option, 0)["kind"] == "usage"


def test_a_prefill_of_this_model_here_gives_its_speed(story: Command, story_file: Path) -> None:
    model = story.json("why", story_file)["model"]
    keep_rate(story.home, Cid.parse(model), 17.0)
    keep_rate(story.home, Cid.of(b"another", "dag-cbor", "sha2-256"), 1.0)
    answer = story.json("why", story_file, "--link", 0.098304)
    assert (answer["prefill_tok_s"], verdicts(answer)) == (17.0, ["RECOMPUTE"] * 5)
    told = story.json("why", story_file, "--link", 0.098304, "--prefill-tok-s", 16)  # the control
    assert (told["prefill_tok_s"], verdicts(told)) == (16.0, ["HIT"] * 5)


def test_a_changed_text_misses_from_the_change_on(story: Command, tmp_path: Path) -> None:
    changed = tmp_path / "changed.txt"
    changed.write_text(STORY[:40] + "!" + STORY[41:])
    answer = story.json("why", changed)
    assert verdicts(answer) == ["HIT", "HIT", "RECOMPUTE", "RECOMPUTE", "RECOMPUTE"]
    assert "no block is recorded" in answer["reason"]
    assert [each["compute_tokens"] for each in answer["verdicts"]] == [0, 0, 16, 16, 16]
    lines = story("why", changed).stdout.splitlines()
    assert [line.split()[:3] for line in lines[:2]] == [["0-1", "0", "HIT"], ["2-4", "32", "RECOMPUTE"]]
    assert lines[1].endswith("compute 48 tokens")
    assert lines[2] == "2 of 5 blocks hit, tail of 5 tokens"


def test_a_prompt_is_asked_about_as_run_would_take_it(cyberkv: Command) -> None:
    prompt = "Tell me the long story of the lighthouse"
    assert set(verdicts(cyberkv.json("why", prompt))) == {"RECOMPUTE"}
    cyberkv("run", prompt, "--max-tokens", 1)
    assert set(verdicts(cyberkv.json("why", prompt))) == {"HIT"}
    assert "HIT" not in verdicts(cyberkv.json("why", prompt, "--system", "Be brief and kind."))


def test_a_word_that_names_no_file_is_said_to_be_a_prompt(story: Command, story_file: Path, tmp_path: Path) -> None:
    result = story("why", "--json", tmp_path / "stroy.txt")
    assert result.stderr.startswith("no file ")
    assert ": taken as a prompt" in result.stderr
    for path in ("my notes.txt", "./old notes", "~/texts/a b"):
        assert ": taken as a prompt" in story("why", path).stderr
    for line in ([story_file], ["a prompt of words"], ["Is it a/b, or c? Tell me."]):
        assert "taken as" not in story("why", *line).stderr


@pytest.mark.parametrize("prompt_bytes", [300, 5000])
def test_a_prompt_may_be_longer_than_a_file_name(cyberkv: Command, prompt_bytes: int) -> None:
    answer = cyberkv.json("why", "x" * prompt_bytes)
    assert answer["tokens"] > prompt_bytes
    assert set(verdicts(answer)) == {"RECOMPUTE"}


@pytest.mark.parametrize("name_bytes", [300, 5000])
def test_a_name_too_long_for_a_file_is_not_found(cyberkv: Command, name_bytes: int) -> None:
    name = "x" * name_bytes
    assert cyberkv.error(3, "size", name, 1)["kind"] == "name-not-found"
    error = cyberkv.error(3, "prefill", name)
    assert (error["kind"], "too long" in error["message"]) == ("not-found", True)


def test_a_damaged_leaf_is_named(story: Command, story_file: Path) -> None:
    block = story("walk", "story", "--json").lines[3]["cid"]
    [leaf] = story.json("show", block)["node"]["kv"]
    story.damage(leaf)
    answer = story.json("why", story_file)
    assert verdicts(answer) == ["HIT"] * 3 + ["RECOMPUTE"] * 2
    assert answer["verdicts"][3]["cid"] == leaf
    assert "damaged" in answer["reason"]
    assert "block 3 before it" in answer["verdicts"][4]["reason"]
    assert leaf in story("why", story_file).stdout


def lose_rows(command: Command, block: int) -> None:
    """Take the rows of one block and of those behind it out of the store."""
    cids = [each["cid"] for each in command("walk", "story", "--json").lines[block:]]
    with DiskStore(command.home / "store") as store:
        store.delete_many([leaf for cid in cids for leaf in Block.decode(store.get(Cid.parse(cid))).kv])


def test_what_a_source_has_is_a_fault(story: Command, elsewhere: Command, story_file: Path, tmp_path: Path) -> None:
    car = tmp_path / "story.car"
    story("key", "new")
    signed = story.json("publish", "story", "--public", "--yes", "--car", car)
    elsewhere("fetch", signed["receipt"], "--from", car, "--trust", signed["signed_by"])
    lose_rows(elsewhere, 2)
    assert verdicts(elsewhere.json("why", story_file)) == ["HIT", "HIT", *["RECOMPUTE"] * 3]
    answer = elsewhere.json("why", story_file, "--from", car)
    assert verdicts(answer) == ["HIT", "HIT", *["FAULT"] * 3]
    fault = answer["verdicts"][2]
    assert (fault["tier"], fault["load_bytes"], fault["load_s"] > 0) == ("L3", 16 * 768, True)
    assert (fault["field"], fault["expected"], fault["got"]) == ("tier", "L2", "L3")
    assert answer["hits"] == 2
    first, second = elsewhere("why", story_file, "--from", car).stdout.splitlines()[:2]
    assert (first.split()[:4], second.split()[:4]) == (["0-1", "0", "HIT", "L2"], ["2-4", "32", "FAULT", "L3"])
    paid = elsewhere.json("why", story_file, "--from", car, "--budget", 16 * 768 + 1)
    assert verdicts(paid) == ["HIT", "HIT", "FAULT", "ABSTAIN", "ABSTAIN"]
    assert "spent before it" in paid["verdicts"][3]["reason"]
    slow = elsewhere.json("why", story_file, "--from", car, "--link", 0.098304, "--prefill-tok-s", 17)
    assert set(verdicts(slow)) == {"RECOMPUTE"}


def test_what_an_edit_gave_up_is_refused_until_it_is_computed_again(story: Command, story_file: Path) -> None:
    story("evict", "story", "20:30")
    answer = story.json("why", story_file)
    assert verdicts(answer) == ["HIT", *["REFUSE"] * 4]
    refused = answer["verdicts"][1]
    assert (refused["field"], refused["expected"], refused["got"]) == ("given_up", False, True)
    assert refused["cid"] in {block["cid"] for block in story("walk", answer_root(story), "--json").lines}
    shown = story("why", story_file).stdout
    assert "1-4" in shown
    assert "block 1: an edit took this text out" in shown
    story("index", "rebuild")
    assert verdicts(story.json("why", story_file)) == ["HIT", *["REFUSE"] * 4]
    figures = story.json("prefill", story_file, "--name", "again")
    assert figures["verdicts"] == {"FAULT": 1, "REFUSE": 4}
    assert verdicts(story.json("why", story_file)) == ["HIT"] * 5


def test_a_note_of_what_was_given_up_goes_with_its_blocks(story: Command, story_file: Path) -> None:
    story("evict", "story", "20:30", "--forget")
    story("gc")
    answer = story.json("why", story_file)
    assert verdicts(answer) == ["HIT", *["RECOMPUTE"] * 4]
    assert [each["cid"] for each in answer["verdicts"][1:]] == [None] * 4


def test_prefill_does_what_why_says(story: Command, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(STORY[:50] + "And then the sea was calm again.")
    said = story.json("why", text)
    done = story.json("prefill", text)
    assert verdicts(said) == ["HIT"] * 3 + ["RECOMPUTE"] * 2
    assert done["verdicts"] == {"FAULT": 3, "RECOMPUTE": 2}  # in the store: near for `why`, below the pool for a run
    assert done["tokens_computed"] == sum(each["compute_tokens"] for each in said["verdicts"]) + said["tail_tokens"]
    assert done["tokens_reused"] == 16 * said["hits"]
    assert "lookups  5 loaded" in story("prefill", text).stdout
    paid = story.json("prefill", text, "--budget", 2 * 16 * 768 + 1)
    assert paid["verdicts"] == {"FAULT": 2, "ABSTAIN": 3}
    assert (paid["tokens_reused"], paid["blocks_new"]) == (32, 0)


def test_what_was_computed_here_is_not_asked_of_a_source(story: Command, story_file: Path, tmp_path: Path) -> None:
    car = tmp_path / "story.car"
    story("publish", "story", "--public", "--yes", "--car", car)
    lose_rows(story, 2)
    assert verdicts(story.json("why", story_file, "--from", car)) == ["HIT", "HIT", *["RECOMPUTE"] * 3]


SMALL: dict[str, Any] = {"num_hidden_layers": 1, "max_position_embeddings": 128}


@pytest.fixture
def replaced(cyberkv: Command, add_tiny: Callable[..., Path], story_file: Path) -> Callable[..., str]:
    """Record with a model, exchange the files behind its name, and give the text a cold run has."""

    def replace(change: Callable[[Path], object]) -> None:
        folder = add_tiny("other", **SMALL)
        cyberkv("model", "add", folder)
        cyberkv("prefill", story_file, "--model", "other", "--name", "before")
        change(folder)

    return replace


def change_one_weight(folder: Path) -> None:
    [path] = folder.glob("*.safetensors")
    tensors = load_file(path)
    tensors["model.layers.0.self_attn.k_proj.weight"][3, 3] += 1.0
    save_file(tensors, path, metadata={"format": "pt"})


def change_rope_scaling(folder: Path) -> None:
    from tests.numerics.tiny import tiny_model

    shutil.rmtree(folder)
    tiny_model("llama-linear", folder, tie_word_embeddings=True, **SMALL)


def change_rope_base(folder: Path) -> None:
    from tests.numerics.tiny import tiny_model

    shutil.rmtree(folder)
    tiny_model("llama", folder, rope_theta=500_000.0, **SMALL)


@pytest.mark.parametrize(
    ("change", "field"),
    [(change_one_weight, "weights"), (change_rope_scaling, "rope.scaling"), (change_rope_base, "rope.base")],
)
def test_a_changed_model_behind_an_unchanged_name_misses_and_says_why(
    cyberkv: Command,
    replaced: Callable[..., None],
    story_file: Path,
    change: Callable[[Path], object],
    field: str,
) -> None:
    replaced(change)
    before = cyberkv.json("model", "show", "other")
    # Unnoticed by the one who runs it, the old identity must not be used with the new files.
    error = cyberkv.error(5, "prefill", story_file, "--model", "other")
    assert (error["kind"], error["field"]) == ("identity-mismatch", field)
    after = cyberkv.json("model", "add", cyberkv.home.parent / "other")
    assert after["cid"] != before["cid"]
    answer = cyberkv.json("why", story_file, "--model", "other")
    assert verdicts(answer) == ["REFUSE"] * 5
    first = answer["verdicts"][0]
    assert (first["field"], first["cid"]) == (field, before["cid"])
    assert first["expected"] != first["got"]
    assert field in answer["reason"]
    figures = cyberkv.json("prefill", story_file, "--model", "other", "--name", "after")
    assert (figures["tokens_reused"], figures["tokens_computed"]) == (0, 85)
    assert verdicts(cyberkv.json("why", story_file, "--model", "other")) == ["HIT"] * 5
    # The control: what the old model recorded is still there, under its own identity.
    assert cyberkv.json("diff", "before", "after")["common_blocks"] == 0
