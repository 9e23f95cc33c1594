"""Private and public spans from the command line: what is shown, published, withheld, inherited, and never printed."""

from pathlib import Path

import pytest

from cyberkv.cybergraph.chain import closure, load_root, tokens
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.peers import CarFilePeer
from cyberkv.cybergraph.prefix import keyed, prefix_keys
from cyberkv.cybergraph.store import DiskStore
from tests.cli.conftest import STORY, Command

# One token a letter; blocks of 16.
SECRET = STORY[30:39]
MIXED = ["--public", "0:30", "--private", "30:39", "--public", "39:85"]


def tokens_of(command: Command, name: str) -> list[int]:
    with DiskStore(command.home / "store", read_only=True) as store, Index(command.home / "index") as index:
        return tokens(store, load_root(store, index.head(name).root))


def of_car(path: Path) -> tuple[Cid, bytes]:
    with CarFilePeer(path) as peer:
        [root] = peer.roots
    return root, path.read_bytes()


def test_the_fixture_is_what_it_seems(story: Command) -> None:
    assert STORY[30:39] == "forty-one"
    assert len(tokens_of(story, "story")) == len(STORY)


def test_marks_are_shown_with_what_follows_from_them(story: Command) -> None:
    before = story.json("mark", "story")
    assert (before["marked"], before["public_tokens"]) == (False, 0)
    marked = story.json("mark", "story", *MIXED)
    assert marked == story.json("mark", "story")
    assert marked["public_tokens"] == 30
    assert [(each["start"], each["end"], each["visibility"], each["withheld"]) for each in marked["spans"]] == [
        (0, 30, "public", None), (30, 39, "private", "private"), (39, 85, "public", "depends on private span 30:39"),
    ]  # fmt: skip
    assert [each["text"] for each in marked["spans"]] == [STORY[:30], SECRET, STORY[39:]]
    assert "depends on private span 30:39" in story("mark", "story").stdout
    assert story.json("mark", "story", "--clear")["marked"] is False
    assert (story.home / "access" / "marks").stat().st_mode & 0o777 == 0o600


def test_only_the_public_beginning_leaves(story: Command, tmp_path: Path) -> None:
    car, whole = tmp_path / "part.car", tmp_path / "whole.car"
    story("publish", "story", "--public", "--yes", "--car", whole)
    story("mark", "story", *MIXED)
    dry = story.json("publish", "story", "--dry-run")
    answer = story.json("publish", "story", "--public", "--yes", "--car", car)
    assert answer["text"] == STORY[:30]
    assert answer["plan"] == dry["plan"]
    assert (answer["root"], answer["bytes"]) == (dry["root"], dry["bytes"])
    assert [(each["start"], each["end"], each["reason"]) for each in answer["withheld"]] == [
        (30, 39, "private"), (39, 85, "depends on private span 30:39"),
    ]  # fmt: skip
    all_tokens = tokens_of(story, "story")
    root, left = of_car(car)
    assert str(root) == answer["root"]
    with DiskStore(story.home / "store") as store:
        full = list(closure(store, of_car(whole)[0]))
        part = load_root(store, root)
        assert tokens(store, part) == all_tokens[:30]
        assert (part.tail.tokens, part.tail.kv, part.title) == (tuple(all_tokens[16:30]), None, "")
        kept = [cid for cid in full if cid in left]
        assert len(kept) == 3  # the model, one block and its leaf, of five
        for cid in {*full} - {*kept}:
            assert cid.digest not in left
            assert cid.digest in whole.read_bytes()  # the control
    assert SECRET.encode() not in left
    assert story.json("show", "story")["cid"] == story.json("log", "story")["roots"][-1]["root"]
    assert len(story.json("log", "story")["roots"]) == 1  # the name stays whole


def test_what_was_published_in_part_is_fetched_and_goes_on(story: Command, elsewhere: Command, tmp_path: Path) -> None:
    car = tmp_path / "part.car"
    story("mark", "story", *MIXED)
    root = story.json("publish", "story", "--public", "--yes", "--car", car)["root"]
    got = elsewhere.json("fetch", root, "--from", car, "--name", "part")
    assert got["root"] == root
    assert elsewhere.json("verify", "part")["root"] == root


def test_nothing_is_published_where_the_first_token_is_private(story: Command) -> None:
    story("mark", "story", "--public", "9:")
    for line in (["--public", "--yes"], ["--dry-run"]):
        error = story.error(5, "publish", "story", *line)
        assert (error["kind"], error["start"], error["end"]) == ("not-public", 0, 9)
        assert STORY[:9] not in str(error)
        assert f"cyberkv mark {error['cid']} --public 0:9" in error["hint"]
    with Index(story.home / "index") as index:
        assert index.published() == []
    story("mark", "story", "--public", ":9")
    assert story.json("publish", "story", "--dry-run")["withheld"] == []


def test_a_span_can_be_prefilled_again_without_what_it_depends_on(story: Command, tmp_path: Path) -> None:
    car, whole = tmp_path / "again.car", tmp_path / "whole.car"
    story("publish", "story", "--public", "--yes", "--car", whole)
    story("mark", "story", *MIXED)
    answer = story.json("publish", "story", "--public", "--yes", "--reprefill", "--car", car)
    text = STORY[:30] + STORY[39:]
    assert (answer["text"], answer["withheld"]) == (text, [])
    all_tokens = tokens_of(story, "story")
    root, left = of_car(car)
    with DiskStore(story.home / "store") as store:
        assert tokens(store, load_root(store, root)) == all_tokens[:30] + all_tokens[39:]
        old = {cid for cid in closure(store, of_car(whole)[0]) if cid.codec == "raw"}
        new = {cid for cid in closure(store, root) if cid.codec == "raw"}
        shared = old & new
        assert len(shared) == 1  # the leaves of the first block, which lies before the private span
        assert len(new - shared) >= 4
    assert all(cid.digest not in left for cid in old - shared)
    [name] = [each["name"] for each in story.json("list")["conversations"] if each["name"] != "story"]
    assert SECRET.split("-")[0] not in name
    assert story.json("mark", name)["public_tokens"] == len(text)
    assert story("fsck").exit_code == 0


def test_a_reprefill_needs_something_to_do_and_the_word(story: Command) -> None:
    story.error(2, "publish", "story", "--reprefill", "--dry-run")
    story.error(2, "publish", "story", "--reprefill")
    story("mark", "story", "--public", ":30")
    assert story.json("publish", "story", "--public", "--yes", "--reprefill")["text"] == STORY[:30]
    assert len(story.json("list")["conversations"]) == 1
    story("mark", "story", *MIXED)
    result = story("--json", "publish", "story", "--public", "--reprefill", ok=False)
    assert result.exit_code == 5
    with Index(story.home / "index") as index:
        assert len(index.published()) == 1


@pytest.mark.parametrize(("at", "public"), [(20, 20), (32, 30), (60, 30)])
def test_a_fork_keeps_the_visibility_of_its_tokens(story: Command, at: int, public: int) -> None:
    story("mark", "story", *MIXED)
    story("fork", "story", "--at", at, "--name", "branch")
    marked = story.json("mark", "branch")
    assert (marked["marked"], marked["public_tokens"]) == (True, public)
    dry = story.json("publish", "branch", "--dry-run")
    assert dry["text"] == STORY[:public]
    root = story.json("show", "branch")["cid"]
    assert story.json("publish", root, "--dry-run")["text"] == STORY[:public], "by CID it is no other conversation"


def test_a_conversation_that_grows_keeps_its_marks_and_the_rest_is_private(story: Command) -> None:
    story("mark", "story", "--public", "0:85")
    story("prefill", "-", "--from", "story", stdin=" The end.")
    dry = story.json("publish", "story", "--dry-run")
    assert (dry["text"], [each["reason"] for each in dry["withheld"]]) == (STORY, ["private"])
    story("prefill", "-", "--name", "other", stdin="Another text under no mark.")
    assert story.json("publish", "other", "--dry-run")["withheld"] == []
    story("prefill", "-", "--name", "story", stdin="Another text under an old name.")
    assert story.json("mark", "story")["marked"] is False


def test_a_mark_on_a_fork_says_that_it_is_the_same_text(story: Command) -> None:
    story("fork", "story", "--at", "60", "--name", "branch")
    assert story("mark", "story", "--public", ":").stderr == ""
    assert "too: branch" in story("mark", "story", "--private", "30:39").stderr
    assert "too: story" in story("mark", "branch", "--clear").stderr
    assert story.json("mark", "story")["public_tokens"] == 85


def test_marking_late_says_that_it_is_late(story: Command) -> None:
    story("publish", "story", "--public", "--yes")
    late = story("mark", "story", "--private", "30:39")
    assert "published already" in late.stderr
    assert "published already" not in story("mark", "story", "--public", "0:3").stderr


def test_readers_get_all_of_it_and_who_publishes_is_told(story: Command, tmp_path: Path) -> None:
    plain = story("publish", "story", "--link", "--car", tmp_path / "plain.car")
    assert "marked private" not in plain.stderr
    story("mark", "story", *MIXED)
    assert "marked private" in story("publish", "story", "--link", "--car", tmp_path / "sealed.car").stderr
    assert SECRET.encode() not in (tmp_path / "sealed.car").read_bytes()


@pytest.mark.parametrize("span", ["5", "a:b", "-1:4", "٣:٤", ""])
def test_what_is_no_range(story: Command, span: str) -> None:
    story.error(2, "mark", "story", "--private", span)


@pytest.mark.parametrize("span", ["5:5", "9:4", "0:86", "90:"])
def test_a_range_that_is_not_there(story: Command, span: str) -> None:
    assert story.error(2, "mark", "story", "--private", span)["tokens"] == 85
    assert story.json("mark", "story")["marked"] is False


def test_damaged_marks_stop_every_publication(story: Command, tmp_path: Path) -> None:
    story("mark", "story", *MIXED)
    path = story.home / "access" / "marks"
    path.write_bytes(path.read_bytes()[:-1])
    car = tmp_path / "never.car"
    error = story.error(4, "publish", "story", "--public", "--yes", "--car", car)
    assert str(path) in error["hint"]
    assert not car.exists()
    story.error(4, "mark", "story", *MIXED)


def test_no_command_prints_what_belongs_to_another_conversation(story: Command, tmp_path: Path) -> None:
    private = "The safe opens with nine three seven, and nobody else may know."
    story("prefill", "-", "--name", "hidden-name", stdin=private)
    story("mark", "hidden-name", "--private", ":")
    story("mark", "story", *MIXED)
    with DiskStore(story.home / "store") as store, Index(story.home / "index") as index:
        ours, theirs = ({*closure(store, index.head(name).root)} for name in ("story", "hidden-name"))
        root = load_root(store, index.head("hidden-name").root)
        keys = list(prefix_keys(root.model, tokens(store, root), root.block_size))
        filed = [keyed(key, index._secret) for key in keys if index._secret]
    secrets = (
        [str(cid) for cid in theirs - ours] + [key.hex() for key in (*keys, *filed)] + ["nine three", "hidden-name"]
    )
    assert len(filed) == 3
    car = tmp_path / "part.car"
    lines = [
        ["publish", "story", "--dry-run"], ["publish", "story", "--public"], ["mark", "story"], ["walk", "story"],
        ["publish", "story", "--public", "--yes"], ["publish", "story", "--public", "--yes", "--car", car],
        ["publish", "story", "--public", "--yes", "--car", tmp_path], ["fork", "story", "--at", "99"],
        ["fork", "story", "--at", "20", "--name", "branch"], ["verify", "story"], ["why", "story"],
        ["fetch", "no-such", "--from", car], ["publish", "story", "--public", "--yes", "--reprefill"],
        ["publish", "story", "--public", "--yes", "--kubo", "http://127.0.0.1:1"],
    ]  # fmt: skip
    for line in lines:
        for mode in ([], ["--json"]):
            result = story("-v", "-v", *mode, *line, ok=False)
            printed = result.stdout + result.stderr
            assert not [secret for secret in secrets if secret in printed], line
    assert any(secret in story("walk", "hidden-name").stdout for secret in secrets)  # the control
    assert not [secret for secret in secrets if secret.encode() in car.read_bytes()]


def test_a_part_can_be_signed(story: Command, tmp_path: Path) -> None:
    story("key", "new")
    story("mark", "story", *MIXED)
    car = tmp_path / "signed.car"
    answer = story.json("publish", "story", "--public", "--sign", "--yes", "--car", car)
    root, left = of_car(car)
    assert str(root) != answer["root"], "the receipt, which names the root"
    assert Cid.parse(answer["root"]) in left
    assert SECRET.encode() not in left
    assert story.json("show", str(root))["node"]["root"] == answer["root"]


def test_private_tokens_do_not_become_public_by_a_wider_span(story: Command) -> None:
    said = story.json("mark", "story", "--private", "4:12")
    error = story.error(5, "mark", "story", "--public", "0:20")
    assert (error["kind"], error["start"], error["end"]) == ("refused", 4, 12)
    assert "cyberkv mark story --clear" in error["hint"]
    assert story.json("mark", "story") == said
    again = story.json("mark", "story", "--public", "0:20", "--private", "4:12")  # it stays private
    assert again["public_tokens"] == 4
    story.error(5, "mark", "story", "--public", "5:11")
    exact = story("--json", "mark", "story", "--public", "4:12")
    assert exact.json["public_tokens"] == 20
    assert "4:12 was marked private" in exact.stderr
    story.json("mark", "story", "--private", "4:12")
    assert story.json("mark", "story", "--clear", "--public", "0:20")["public_tokens"] == 20


@pytest.mark.parametrize("at", [33, 38])
def test_what_becomes_public_here_stays_private_in_a_fork(story: Command, at: int) -> None:
    story("mark", "story", *MIXED)
    story("fork", "story", "--at", at, "--name", "branch")
    story("fork", "story", "--at", 60, "--name", "longer")
    before = story.json("mark", "branch")["spans"]
    assert [(each["start"], each["end"], each["visibility"]) for each in before] == [
        (0, 30, "public"), (30, at, "private"),
    ]  # fmt: skip
    opened = story("--json", "mark", "story", "--public", "30:39")
    assert opened.json["public_tokens"] == 85
    assert "branch" not in opened.stderr
    assert story.json("mark", "branch")["spans"] == before
    assert story.json("publish", "branch", "--dry-run")["text"] == STORY[:30]
    assert story.json("mark", "longer")["public_tokens"] == 60  # the control: it has the whole span
    story("fork", "story", "--at", at, "--name", "late")  # the same tokens as `branch`
    assert story.json("mark", "late")["spans"] == before
    story("mark", "branch", "--public", f"30:{at}")
    assert story.json("mark", "branch")["public_tokens"] == at
