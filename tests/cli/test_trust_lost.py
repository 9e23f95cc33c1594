"""Trust that is taken back, and what was noted of it when names, conversations, locks or the index come and go."""

import shutil
from pathlib import Path
from typing import Any

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import DiskStore
from tests.cli.conftest import STORY, Command
from tests.cli.test_trust import MORE, car, goes_on, signed, untrusted

__all__ = ["car", "signed"]


def test_receipts_are_followed_back_whether_or_not_they_are_served(story: Command, tmp_path: Path) -> None:
    story("key", "new")
    receipts = [story.json("publish", "story", "--public", "--yes")]
    for _ in range(2):
        story("prefill", "-", "--from", "story", stdin=MORE)
        receipts.append(story.json("publish", "story", "--public", "--yes"))
    with Index(story.home / "index") as index:
        for each in receipts[:2]:
            index.withdraw(Cid.parse(each["receipt"]), [Cid.parse(each["receipt"])])
    [checked] = story.json("verify", receipts[2]["receipt"], "--level", "receipt")["receipts"]
    assert checked["earlier"] == [{"cid": each["receipt"], "root": each["root"]} for each in receipts[1::-1]]
    assert "2 followed" in story("verify", receipts[2]["receipt"], "--level", "receipt").stdout
    with DiskStore(story.home / "store") as store:
        store.delete_many([Cid.parse(receipts[1]["receipt"])])
    [checked] = story.json("verify", receipts[2]["receipt"], "--level", "receipt")["receipts"]
    assert (checked["prev"], checked["earlier"]) == (receipts[1]["receipt"], [])
    assert "not here" in story("verify", receipts[2]["receipt"], "--level", "receipt").stdout


def test_a_signer_who_is_removed_leaves_nothing_to_go_on_from_whatever_is_deleted_or_lost(
    story: Command, elsewhere: Command, car: Path, signed: dict[str, Any]
) -> None:
    elsewhere("fetch", signed["receipt"], "--from", car, "--trust", signed["signed_by"])
    goes_on(elsewhere)
    elsewhere("fork", "next", "--at", 90, "--name", "fork-of-next")
    elsewhere("fork", "story", "--at", 40, "--name", "cut")
    elsewhere("fork", "cut", "--at", 32, "--name", "cut-again")
    elsewhere("prefill", "-", "--name", "mine", stdin="Something else, of several blocks, computed here.")
    descendants = ("next", "fork-of-next", "cut", "cut-again")

    def went_on() -> set[str]:
        line = ("prefill", "-", "--name", "probe", "--from")
        names = (*descendants, "mine")
        return {name for name in names if elsewhere(*line, name, stdin=MORE, ok=False).exit_code == 0}

    assert went_on() == {*descendants, "mine"}
    elsewhere("forget", "story", "probe")
    elsewhere("gc")
    assert elsewhere.error(3, "show", signed["root"])["kind"] == "block-not-found"
    assert went_on() == {*descendants, "mine"}
    elsewhere("trust", "remove", signed["signed_by"])
    assert went_on() == {"mine"}
    shutil.rmtree(elsewhere.home / "index")
    elsewhere("index", "rebuild")
    assert went_on() == {"mine"}
    elsewhere("trust", "add", signed["signed_by"])
    assert went_on() == {*descendants, "mine"}


def test_what_was_accepted_can_be_taken_back(
    story: Command, elsewhere: Command, car: Path, signed: dict[str, Any]
) -> None:
    elsewhere("fetch", signed["root"], "--from", car, "--trust", "unsigned")
    assert elsewhere.json("trust", "list")["accepted"] == [signed["root"]]
    goes_on(elsewhere)
    elsewhere("fork", "story", "--at", 40, "--name", "cut")
    assert "stand on another" in elsewhere.error(3, "trust", "remove", "cut")["hint"]
    taken = elsewhere("--json", "trust", "remove", "story")
    assert taken.json == {"root": signed["root"], "usable": False}
    assert elsewhere.json("trust", "list")["accepted"] == []
    for ref in ("story", "next", "cut", signed["root"]):
        untrusted(elsewhere, "run", MORE, "--from", ref)
    assert elsewhere.json("show", "story")["node"]["length"] == 85
    assert elsewhere.error(3, "trust", "remove", signed["root"])["kind"] == "name-not-found"
    elsewhere("fetch", "story", "--trust", "unsigned")
    assert goes_on(elsewhere, "cut")["tokens_reused"] == 32
    elsewhere("prefill", "-", "--name", "mine", stdin=STORY)  # now its blocks are one's own
    elsewhere("trust", "remove", signed["root"][:20])
    assert goes_on(elsewhere, "cut")["tokens_reused"] == 40


def test_a_share_link_can_be_taken_back(story: Command, elsewhere: Command, car: Path) -> None:
    story("key", "new")
    link = story.json("publish", "story", "--link", "--car", car)["link"]
    root = elsewhere.json("fetch", link, "--from", car)["root"]
    assert goes_on(elsewhere)["tokens_reused"] == 85
    elsewhere("trust", "remove", root)
    untrusted(elsewhere, "run", MORE, "--from", "story")


def test_what_was_locked_meanwhile_is_as_foreign_as_before(
    story: Command, elsewhere: Command, car: Path, signed: dict[str, Any]
) -> None:
    elsewhere("fetch", signed["root"], "--from", car, "--trust", "unsigned")
    goes_on(elsewhere)
    elsewhere("key", "new")
    elsewhere("trust", "remove", "story")
    elsewhere("lock", "next", "--weak")
    elsewhere("forget", "story")
    elsewhere("gc")
    elsewhere("unlock", "next")
    untrusted(elsewhere, "run", MORE, "--from", "next")


def test_a_copy_of_what_was_made_here_stands_on_what_it_stood_on(
    story: Command, elsewhere: Command, car: Path, signed: dict[str, Any], tmp_path: Path
) -> None:
    elsewhere("fetch", signed["receipt"], "--from", car, "--trust", signed["signed_by"])
    goes_on(elsewhere)
    copy = tmp_path / "copy.car"
    root = elsewhere.json("publish", "next", "--public", "--yes", "--no-sign", "--car", copy)["root"]
    elsewhere("fetch", root, "--from", copy, "--name", "next")
    assert goes_on(elsewhere, root)["tokens_reused"] >= 85
    elsewhere("trust", "remove", signed["signed_by"])
    untrusted(elsewhere, "run", MORE, "--from", root)
