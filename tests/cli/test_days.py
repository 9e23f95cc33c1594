"""Conversations over days and processes: a timeline, finding by date, and going on from an old turn."""

import json
from pathlib import Path

import pytest

from cyberkv.cli.context import Session
from tests.cli.conftest import STORY, Command
from tests.forked import Forked

SIZE = 16


class Days:
    """The clock of the commands of this process."""

    now = ""

    def are(self, now: str) -> None:
        self.now = now


@pytest.fixture
def days(monkeypatch: pytest.MonkeyPatch) -> Days:
    clock = Days()
    monkeypatch.setattr(Session, "now", lambda _: clock.now)
    return clock


def test_log_of_everything_is_a_timeline_by_day(cyberkv: Command, days: Days) -> None:
    days.are("2025-03-02T08:00:00Z")
    cyberkv("prefill", "-", "--name", "b", stdin=STORY)
    days.are("2025-03-01T22:15:00Z")
    cyberkv("prefill", "-", "--name", "a", stdin=STORY[:20])
    days.are("2025-03-02T09:30:00Z")
    cyberkv("prefill", "-", "--from", "a", stdin=STORY[20:30])
    days.are("")
    cyberkv("fork", "a", "--at", 5, "--name", "whenever")
    lines = cyberkv("--json", "log").lines
    assert [(each["day"], each["name"], each["tokens"]) for each in lines] == [
        (None, "whenever", 5), ("2025-03-01", "a", 20), ("2025-03-02", "b", 85), ("2025-03-02", "a", 30),
    ]  # fmt: skip
    assert cyberkv("--json", "log", "--all").lines == lines
    assert cyberkv("--json", "log", "--since", "2025-03-02").lines == lines[2:]
    assert cyberkv("--json", "log", "--until", "2025-03-01").lines == lines[1:2]
    assert "nothing was recorded then" in cyberkv("log", "--since", "2026-01-01").stderr
    assert "nothing was recorded then" not in cyberkv("log", "--since", "2025-03-02").stderr
    page = cyberkv("log").stdout.splitlines()
    assert [each for each in page if not each.startswith(" ")] == ["undated", "2025-03-01", "2025-03-02"]
    assert sum(each.startswith("  09:30:00") for each in page) == 1
    assert [each["tokens"] for each in cyberkv.json("log", "a", "--since", "2025-03-02")["roots"]] == [30]
    assert cyberkv.error(2, "log", "a", "--all")["kind"] == "usage"


@pytest.mark.parametrize(
    "date", ["2025-02-30", "", "x", "0001-01-01T00:00:00+10:00", "9999-12-31T23:59:59-10:00", "9" * 400]
)
def test_what_is_no_date_is_a_usage_error(date: str, cyberkv: Command) -> None:
    message = cyberkv.error(2, "log", "--since", date)["message"]
    assert "no date" in message
    assert len(message) < 250


def test_a_year_of_three_digits_is_long_ago(story: Command) -> None:
    assert story("--json", "log", "--since", "0999-01-01").lines
    assert not story("--json", "log", "--until", "0999-01-01").lines


def test_what_is_locked_has_its_place_in_the_timeline(story: Command) -> None:
    story("lock", "story", "--weak")
    [entry] = story("--json", "log").lines
    assert "sealed" in entry["error"]
    assert "sealed" in story("log").stdout


def test_yesterday_is_found_gone_on_from_and_forked(cyberkv: Command, days: Days) -> None:
    """A conversation over days, each turn by a command of its own that opens the home anew."""
    turns = {
        "2025-03-01T09:00:00Z": "The password of the harbour is heron.",
        "2025-03-02T09:00:00Z": " Today we counted ships.",
        "2025-03-03T09:00:00Z": " Today there was only fog.",
    }
    roots: list[str] = []
    for now, text in turns.items():
        days.are(now)
        line = ["prefill", "-", "--from", "diary"] if roots else ["prefill", "-", "--name", "diary"]
        recorded = cyberkv.json(*line, stdin=text)
        roots.append(recorded["root"])
    assert recorded["tokens_total"] == sum(map(len, turns.values()))
    assert recorded["tokens_reused"] >= 3 * SIZE  # nothing of the days before is computed again, but a tail

    def later(*args: str) -> str:
        process = Forked(["--home", cyberkv.home, "--json", *args])
        stdout: str = process.communicate()[0]
        assert process.returncode == 0
        return stdout

    # Another process, at another time: the real one.
    assert [each["day"] for each in map(json.loads, later("log").splitlines())] == [now[:10] for now in turns]
    first_day = json.loads(later("find", "heron", "--until", "2025-03-01"))["matches"]
    assert [(each["root"], each["position"]) for each in first_day] == [(roots[0], 31)]
    forked = json.loads(later("fork", first_day[0]["root"], "--at", "37", "--name", "instead"))
    assert forked["shared_blocks"] == 2
    other = cyberkv.json("prefill", "-", "--from", "instead", stdin=" Today nobody asked.")
    assert cyberkv.json("diff", "instead", "diary")["common_tokens"] == 37 + len(" Today ")
    # Control: the same words, recorded anew elsewhere in the text, are no memory of that day.
    assert (
        cyberkv.json("prefill", "-", "--name", "new", stdin="!" + turns["2025-03-01T09:00:00Z"])["tokens_reused"] == 0
    )
    assert other["tokens_reused"] >= 2 * SIZE


def test_find_within_a_time_and_of_a_model(cyberkv: Command, days: Days, tiny_folder: Path) -> None:
    cyberkv("model", "add", tiny_folder, "--name", "wide", "--block-size", 32)
    days.are("2025-03-01T10:00:00Z")
    cyberkv("prefill", "-", "--model", "tiny", "--name", "early", stdin=STORY)
    days.are("2025-03-02T23:59:59Z")
    cyberkv("prefill", "-", "--model", "wide", "--name", "late", stdin=STORY)
    cases = {
        (): ["early", "late"],
        ("--since", "2025-03-02"): ["late"],
        ("--until", "2025-03-01"): ["early"],
        ("--until", "2025-03-02"): ["early", "late"],
        ("--until", "2025-03-02T23:59:58Z"): ["early"],
        ("--since", "2025-03-01T10:00:00Z", "--until", "2025-03-01T10:00:00Z"): ["early"],
        ("--since", "2025-03-01T12:00:01+02:00"): ["late"],
        ("--since", "2025-03-03"): [],
        ("--model", "wide"): ["late"],
        ("--model", "tiny", "--since", "2025-03-02"): [],
    }
    for options, names in cases.items():
        result = cyberkv("--json", "find", "lighthouse", *options, ok=False)
        assert [each["name"] for each in result.json["matches"]] == names
        assert result.exit_code == (0 if names else 3)
    assert "2025-03-99" in cyberkv.error(2, "find", "x", "--since", "2025-03-99")["message"]
    assert cyberkv.error(3, "find", "x", "--model", "nosuch")["kind"] == "name-not-found"
