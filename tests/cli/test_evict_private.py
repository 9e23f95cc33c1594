"""What an edit moves stays as private as it was, and gates quote nothing."""

from pathlib import Path

import pytest

from cyberkv.cli.edited import Edited
from cyberkv.cli.interrupt import Stop
from cyberkv.cybergraph.cid import Cid
from tests.cli.conftest import STORY, Command
from tests.cli.test_evict import AT, END, SPAN, indexed, root_of, text_of


def test_what_is_private_stays_private_where_it_moves_to(story: Command) -> None:
    fog = STORY.index("the fog")
    story("mark", "story", "--public", "0:60", "--private", f"{fog}:{fog + 7}")
    story("evict", "story", f"{AT}:{END}")
    marked = story.json("mark", "story")
    assert marked["marked"]
    held = [each["text"] for each in marked["spans"] if each["visibility"] == "private"]
    assert "the fog" in "".join(held)
    assert marked["public_tokens"] <= fog - len(SPAN)


def test_a_conversation_of_which_only_the_evicted_was_marked_stays_private(story: Command) -> None:
    story("mark", "story", "--private", f"{AT}:{END}")
    story("evict", "story", f"{AT}:{END}")
    marked = story.json("mark", "story")
    assert (marked["marked"], marked["public_tokens"]) == (True, 0)
    story("evict", "story", "30:", "--mode", "rollback")
    assert story.json("mark", "story")["public_tokens"] == 0


def test_a_root_that_heads_no_name_gets_one(story: Command) -> None:
    old = root_of(story, "story")
    story("evict", "story", f"{AT}:{END}")
    done = story.json("evict", old, "0:4", "--mode", "exact")
    assert done["name"] != "story"
    assert text_of(story, done["root"]) == STORY[4:]
    shown = story.json("log", done["name"])["roots"][-1]
    assert (str(shown["parent"]), shown["fork_at"]) == (old, 0)


def test_ctrl_c_leaves_the_conversation(story: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    before = story.json("log", "story")
    with monkeypatch.context() as patch:
        patch.setattr(Stop, "check", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        assert story("evict", "story", f"{AT}:{END}", ok=False).exit_code == 130
    assert story.json("log", "story") == before
    assert indexed(story) >= 5
    assert story.json("evict", "story", "--list")["edits"] == []
    assert story.json("fsck")["findings"] == []
    assert story.json("evict", "story", f"{AT}:{END}")["receipt"]["exact"]


def test_what_edits_keep_never_leaves(story: Command, tmp_path: Path) -> None:
    story("evict", "story", f"{AT}:{END}", "--name", "ships-secret-name")
    story("evict", "story", "ships-secret-name")
    story("publish", "story", "--public", "--yes", "--car", tmp_path / "story.car")
    data = (tmp_path / "story.car").read_bytes()
    assert b"ships-secret-name" not in data
    assert b"cyberkv/edit" not in data


HIDDEN = "counted forty-one ships"
SAID = STORY.index(HIDDEN)


@pytest.mark.parametrize(("mode", "public_tokens"), [("exact", len(STORY) - len(HIDDEN)), ("fast", SAID)])
def test_what_holds_the_influence_of_something_private_is_private(
    mode: str, public_tokens: int, story: Command
) -> None:
    rest = f"{SAID + len(HIDDEN)}:"
    story("mark", "story", "--public", f"0:{SAID}", "--public", rest)
    story("mark", "story", "--private", f"{SAID}:{SAID + len(HIDDEN)}")
    story("evict", "story", f"{SAID}:{SAID + len(HIDDEN)}", "--mode", mode)
    assert story.json("mark", "story")["public_tokens"] == public_tokens
    plan = story.json("publish", "story", "--public", "--dry-run")
    assert plan["text"] == (STORY[:SAID] + STORY[SAID + len(HIDDEN) :])[:public_tokens]


def test_a_fast_eviction_of_what_was_public_hides_nothing(story: Command) -> None:
    story("mark", "story", "--public", "0:")
    story("evict", "story", f"{AT}:{END}", "--mode", "fast")
    assert story.json("mark", "story")["public_tokens"] == len(STORY) - len(SPAN)


def test_what_was_said_to_be_private_of_just_these_tokens_stays_so(story: Command) -> None:
    story("prefill", "-", "--name", "again", stdin=STORY[:AT] + STORY[END:])
    story("mark", "again", "--private", "60:")
    story("mark", "story", "--public", "0:")
    story("evict", "story", f"{AT}:{END}")
    assert story.json("mark", "story")["public_tokens"] <= 60


@pytest.mark.parametrize("text", ["\U000e0041" * 100, "é" * 60, "\x01" * 60])
def test_a_gate_finds_what_cannot_be_printed(text: str, story: Command, tmp_path: Path) -> None:
    (tmp_path / "list").write_text(f"other\n{text}\n")
    story("prefill", "-", "--name", "odd", stdin=f"before {text} after")
    done = story.json("evict", "odd", "0:", "--gate", tmp_path / "list")
    assert [each["reason"] for each in done["verdicts"]] == ["holds text 2 of the list"]


def test_a_list_that_is_too_long_is_told_so_wherever_it_is_cut(story: Command, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("é" * (1 << 20))
    assert story.error(4, "evict", "story", "0:", "--gate", tmp_path / "list")["kind"] == "limit-exceeded"


def test_what_gates_said_does_not_outlive_a_lock(story: Command, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("forty-one\n")
    story("evict", "story", f"{AT}:{END}", "--name", "ships")
    story("evict", "story", "--gate", tmp_path / "list")
    story("lock", "story", "--weak")
    files = [file for file in story.home.rglob("*") if file.is_file() and "models" not in file.parts]
    assert [file for file in files if b"forty-one" in file.read_bytes()] == []


@pytest.mark.parametrize("mode", ["exact", "fast", "rollback"])
def test_what_went_on_meanwhile_is_not_lost(mode: str, story: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    story("prefill", "-", "--name", "other", stdin="what another process recorded meanwhile")
    other, elsewhere = root_of(story, "other"), Edited.elsewhere

    def meanwhile(edited: Edited, start: int) -> tuple[str, ...]:
        edited.session.index.set_head("story", Cid.parse(other), "")
        return elsewhere(edited, start)

    monkeypatch.setattr(Edited, "elsewhere", meanwhile)
    assert "moved on" in story.error(5, "evict", "story", f"{AT}:", "--mode", mode)["message"]
    assert root_of(story, "story") == other
    monkeypatch.undo()
    assert story.json("evict", "story", "3:9", "--mode", "exact")["receipt"]["exact"]  # the control
    assert story.json("fsck")["findings"] == []
