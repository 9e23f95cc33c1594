"""`run --select`: a conversation longer than the positions of its model."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import STORY, Command

POSITIONS = 320


@pytest.fixture
def short(cyberkv: Command, add_tiny: Callable[..., Path]) -> Command:
    """A home with one model of 320 positions, and a conversation `talk` that nearly fills them."""
    home = cyberkv.home / "models"
    for record in home.glob("*.json"):
        record.unlink()
    cyberkv("model", "add", add_tiny("short", max_position_embeddings=POSITIONS))
    cyberkv("prefill", "-", "--name", "talk", stdin=(STORY * 4)[: POSITIONS - 20])
    return cyberkv


def test_without_the_option_the_error_names_it(short: Command) -> None:
    error = short.error(2, "run", "What did the keeper count?", "--from", "talk")
    assert error["kind"] == "out-of-range"
    assert "--select" in error["hint"]


@pytest.mark.parametrize("policy", ["recent", "similar"])
def test_a_conversation_goes_on_beyond_the_window_and_says_how(short: Command, policy: str) -> None:
    exact = short.json("show", "talk")["cid"]
    for turn in range(4):
        answer = short.json(
            "run", f"{turn} {STORY}", "--from", "talk", "--select", policy, "--max-tokens", 16, "--name", "talk"
        )
        assert answer["approx"] == f"selected blocks: {policy}"
    assert answer["tokens_total"] > 2 * POSITIONS
    assert short.json("show", "talk")["node"]["approx"] == f"selected blocks: {policy}"
    assert "approximate: selected blocks" in short("list").stdout
    short("verify", "talk")
    assert next(each["root"] for each in short.json("log", "talk")["roots"]) == exact
    # Found by text like any other; and what goes on from it exactly is refused.
    assert short.json("find", f"3 {STORY}")["matches"][0]["name"] == "talk"
    for line in (["run", "x", "--from", "talk"], ["prefill", str(short.home / "x"), "--from", "talk"]):
        (short.home / "x").write_text("x")
        assert "--select" in short.error(2, *line)["hint"]
    # What fits the window stays exact, option or not.
    begun = short.json("run", "Hello", "--from", exact, "--select", policy, "--max-tokens", 1, "--name", "b")
    assert begun["approx"] is None


def test_a_first_prompt_may_be_longer_than_the_window(short: Command) -> None:
    long = STORY * 9
    assert "--select" in short.error(2, "run", long, "--max-tokens", 4)["hint"]
    result = short("run", long, "--max-tokens", 4, "--select", "recent", "--name", "long")
    assert "approx  selected blocks: recent" in result.stderr
    assert short.json("show", "long")["node"]["length"] > 2 * POSITIONS
    assert short.error(2, "run", "x", "--select", "oldest")["kind"] == "usage"
