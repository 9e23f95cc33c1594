"""`reblock`: a conversation in blocks of another size."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import STORY, Command

TEXT = STORY * 2
"""170 tokens, one per byte."""


@pytest.fixture
def sizes(cyberkv: Command, tiny_folder: Path) -> Command:
    """A home in which `talk16` and `talk64` hold one text, recorded with blocks of 16 and of 64."""
    cyberkv("model", "add", tiny_folder, "--name", "wide", "--block-size", 64)
    for model, name in (("tiny", "talk16"), ("wide", "talk64")):
        cyberkv("prefill", "-", "--model", model, "--name", name, stdin=TEXT[:128])
    return cyberkv


def blocks(command: Command, ref: str) -> list[str]:
    return [each["cid"] for each in command("--json", "walk", ref).lines]


@pytest.mark.parametrize(("old", "new"), [(16, 64), (64, 16)])
def test_the_blocks_are_those_of_recording_with_that_size(sizes: Command, old: int, new: int) -> None:
    before = sizes.json("stats")["blocks"]
    moved = sizes.json("reblock", f"talk{old}", "--block-size", new, "--name", "moved")
    assert (moved["tokens"], moved["blocks"], moved["tail_tokens"]) == (128, 128 // new, 0)
    assert (moved["block_size"], moved["block_size_before"], moved["tokens_computed"]) == (new, old, 0)
    assert blocks(sizes, "moved") == blocks(sizes, f"talk{new}")
    assert sizes.json("stats")["blocks"] == before  # every one of them was here
    assert not set(blocks(sizes, "moved")) & set(blocks(sizes, f"talk{old}"))  # control: two sizes share nothing
    # There and back again is the same conversation, and the model of the other size goes on from it.
    sizes("reblock", "moved", "--block-size", old, "--name", "back")
    assert blocks(sizes, "back") == blocks(sizes, f"talk{old}")
    on = sizes.json("prefill", "-", "--from", "moved", stdin=" More.")
    assert (on["tokens_reused"], on["tokens_computed"]) == (128, 6)


def test_it_gets_a_name_and_says_what_to_register(story: Command) -> None:
    result = story("reblock", "story", "--block-size", 8)
    assert "story-8" in result.stdout
    assert "10 blocks of 8 tokens, instead of 16 and a tail of 5" in result.stdout
    assert "--block-size 8" in result.stderr
    assert story.json("show", "story-8")["node"]["length"] == 85
    assert story("fsck").exit_code == 0


def test_refusals_name_both_values(story: Command) -> None:
    error = story.error(5, "reblock", "story", "--block-size", 24)
    assert (error["block_size"], error["wanted"]) == (16, 24)
    assert "16" in error["message"]
    assert "24" in error["message"]
    assert story.error(5, "reblock", "story", "--block-size", 4)["tail_tokens"] == 5
    assert story.error(2, "reblock", "story", "--block-size", 0)["kind"] == "usage"
    assert story.error(2, "reblock", "story", "--block-size", 8, "--name", "-x")["kind"] == "bad-reference"
    assert story.json("stats")["roots"] == 1


def test_a_damaged_leaf_is_not_carried_over(story: Command) -> None:
    block = story("--json", "walk", "story").lines[1]["cid"]
    [leaf] = story.json("show", block)["node"]["kv"]
    story.damage(leaf)
    assert story.error(4, "reblock", "story", "--block-size", 32)["cid"] == leaf
    assert story.json("stats")["conversations"] == 1


def test_a_size_that_does_not_fit_is_refused_before_torch_is_loaded(story: Command) -> None:
    script = (
        "import sys\nsys.modules['torch'] = None\n"  # whoever imports it fails, at once
        "from cyberkv.cli.main import cli\ncli.main(sys.argv[1:])"
    )

    def error(size: int) -> str:
        line = [sys.executable, "-c", script, "--home", str(story.home), "reblock", "story", "--block-size", str(size)]
        return subprocess.run(line, capture_output=True, text=True, check=False).stderr

    assert "into blocks of 24" in (refused := error(24))
    assert "torch" not in refused
    assert "import of torch halted" in error(32)  # the control
