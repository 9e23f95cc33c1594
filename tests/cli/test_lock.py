"""Conversations that lie sealed in their own home."""

from pathlib import Path
from typing import Any

import pytest

from cyberkv.cli.identities import FILE_VARIABLE
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.store import DiskStore
from cyberkv.cybergraph.transfer import sealed
from tests.cli.conftest import STORY, Command


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the passphrase is read from."""
    path = tmp_path / "words"
    path.write_text("open sesame\n")
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    return path


def blocks_of(command: Command) -> list[list[int]]:
    return [line["tokens"] for line in command("--json", "walk", "story").lines]


def test_what_is_locked_is_gone_until_it_is_unlocked(story: Command, words: Path) -> None:
    before, root = blocks_of(story), story.json("show", "story")["cid"]
    with DiskStore(story.home / "store", read_only=True) as store:
        plain = {cid: store.get(cid) for cid in store.cids()}
    story.json("key", "new", "safe", "--passphrase")
    locked = story.json("lock", "story")
    assert locked["deleted"] >= 12
    with DiskStore(story.home / "store", read_only=True) as store:
        left = set(store.cids())
        model = Cid.parse(story.json("model", "list")["models"][0]["cid"])
        assert left & plain.keys() <= {model}
        assert all(STORY.encode()[:16] not in store.get(cid) for cid in left)
    assert story.error(2, "walk", "story")["kind"] == "bad-reference"
    assert "unlock" in story.error(2, "run", "go on", "--from", "story")["hint"]
    assert "sealed" in story("list").stdout
    assert story("--json", "find", STORY[:10], ok=False).json["matches"] == []
    assert story("fsck").exit_code == 0
    assert story.json("gc")["nodes"] == 0

    words.write_text("wrong\n")
    assert story.error(6, "unlock", "story")["kind"] == "bad-key"
    words.write_text("open sesame\n")
    assert story.json("unlock", "story")["root"] == root
    assert blocks_of(story) == before
    assert story("fsck").exit_code == 0
    with DiskStore(story.home / "store", read_only=True) as store:
        assert {cid: store.get(cid) for cid in store.cids()} == plain
    assert story.error(2, "unlock", "story")["message"].endswith("not locked")


def test_a_key_that_lies_open_beside_it_has_to_be_allowed(story: Command) -> None:
    assert "passphrase" in story.error(5, "lock", "story")["message"]
    story.json("key", "new")
    story.error(5, "lock", "story")
    story.json("lock", "story", "--weak")
    story.json("unlock", "story")


def test_it_opens_with_the_key_it_was_sealed_for_and_no_other(story: Command, words: Path) -> None:
    story.json("key", "new")
    story.json("key", "new", "safe", "--passphrase")
    story.json("lock", "story", "--key", "safe")
    assert story.error(6, "unlock", "story", "--key", "me")["kind"] == "not-a-recipient"
    story.json("unlock", "story")


def test_what_is_public_is_not_locked(story: Command) -> None:
    story("publish", "story", "--public", "--yes")
    error = story.error(5, "lock", "story", "--weak")
    assert "published" in error["message"]
    assert "under another name" in error["hint"]


def test_what_others_share_stays(story: Command) -> None:
    story("fork", "story", "--at", "32", "--name", "other")
    story.json("lock", "story", "--weak")
    assert len(story("--json", "walk", "other").lines) == 2
    assert story("fsck").exit_code == 0


def test_what_was_computed_here_serves_other_prompts_again(story: Command) -> None:
    def verdicts() -> list[dict[str, Any]]:
        found = story.json("why", "-", "--prefill-tok-s", "0.001", stdin=STORY)["verdicts"]
        return [
            {key: value for key, value in each.items() if key != "load_s"} for each in found
        ]  # but what is measured

    before, domains = verdicts(), story.json("stats")["domains"]
    assert {each["verdict"] for each in before} == {"HIT"}
    story.json("lock", "story", "--weak")
    assert {each["verdict"] for each in verdicts()} == {"RECOMPUTE"}  # the control
    [note] = (story.home / "access" / "locked").iterdir()
    assert note.stat().st_mode & 0o777 == 0o600
    story.json("unlock", "story")
    assert verdicts() == before
    assert story.json("stats")["domains"] == domains
    assert not note.exists()
    assert story("fsck").exit_code == 0


def test_what_is_foreign_does_not_become_ones_own(story: Command, elsewhere: Command, tmp_path: Path) -> None:
    car = tmp_path / "signed.car"
    receipt = story.json("publish", "story", "--public", "--yes", "--sign", "--car", car)["receipt"]
    elsewhere.json("fetch", receipt, "--from", car, "--name", "story")
    before = elsewhere.json("why", "-", stdin=STORY)["verdicts"]
    assert "HIT" not in {each["verdict"] for each in before}
    elsewhere.json("lock", "story", "--weak")
    elsewhere.json("unlock", "story")
    assert elsewhere.json("why", "-", stdin=STORY)["verdicts"] == before
    assert elsewhere.error(5, "run", "go on", "--from", "story")["kind"] == "untrusted"


def test_what_a_late_writer_keeps_of_the_plaintext_is_said_and_goes_with_gc(
    story: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = story.json("show", "story")["cid"]
    sealing, late = sealed.publish_sealed, list[DiskStore]()

    def overtaken(*args: Any, **words: Any) -> Any:
        done = sealing(*args, **words)
        late.append(DiskStore(story.home / "store"))
        return done

    monkeypatch.setattr(sealed, "publish_sealed", overtaken)
    error = story.error(5, "lock", "story", "--weak")
    assert "story is sealed, but its plaintext is still here" in error["message"]
    assert "`cyberkv gc` deletes it" in error["hint"]
    assert error["plaintext_left"] == before
    assert story.json("show", "story")["cid"] == error["sealed_as"] != before
    story.error(5, "gc")
    late.pop().close()
    assert story.json("gc")["conversations"][0]["root"] == before
    with DiskStore(story.home / "store", read_only=True) as store:
        assert all(STORY.encode()[:16] not in store.get(cid) for cid in store.cids())
    assert story.json("unlock", "story")["root"] == before


def test_a_forgotten_conversation_leaves_no_note_of_its_lock(story: Command) -> None:
    story("prefill", "-", "--name", "other", stdin="Another conversation of its own, of some length.")
    for name in ("story", "other"):
        story.json("lock", name, "--weak", *([] if name == "story" else ["--key", "me"]))
    notes = story.home / "access" / "locked"
    sealed = {each["name"]: each["root"] for each in story.json("list")["conversations"]}
    assert {path.name for path in notes.iterdir()} == {*sealed.values()}
    story("forget", "story")
    assert {path.name for path in notes.iterdir()} == {sealed["other"]}
    story("gc")
    story("unlock", "other")
    assert list(notes.iterdir()) == []
