"""`publish` and `fetch`: what becomes public, what is brought, and what is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cyberkv.cybergraph.car import write_car
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import DiskStore, MemoryStore
from cyberkv.cybergraph.transfer import plan_publish, publish_car
from tests.cli.conftest import STORY, Command
from tests.wire.synthetic import contents, record

BLOCKS = 14
"""Root, model, segment, five blocks with a leaf each, and the tail's leaf."""
LEAF_BYTES = 16 * 768


@pytest.fixture
def car(story: Command, tmp_path: Path) -> Path:
    """The conversation `story` as a file."""
    path = tmp_path / "story.car"
    story("publish", "story", "--public", "--yes", "--car", path)
    return path


def root_of(command: Command, ref: str = "story") -> str:
    root: str = command.json("show", ref)["cid"]
    return root


def published(command: Command) -> int:
    count: int = command.json("stats")["published"]
    return count


def test_private_is_the_default(story: Command, tmp_path: Path) -> None:
    for options in ([], ["--yes"], ["--car", tmp_path / "x.car", "--yes"]):
        error = story.error(5, "publish", "story", *options)
        assert error["kind"] == "not-public"
        assert "--public" in error["hint"]
    assert published(story) == 0
    assert not (tmp_path / "x.car").exists()


def test_without_a_terminal_it_has_to_be_said_twice(story: Command) -> None:
    result = story("--json", "publish", "story", "--public", ok=False, stdin="y\n")
    assert result.exit_code == 5
    assert "--yes" in result.json["error"]["hint"]
    assert STORY in result.stderr
    assert published(story) == 0


def test_a_dry_run_says_everything_and_changes_nothing(story: Command) -> None:
    plan = story.json("publish", "story", "--public", "--dry-run")
    assert (plan["root"], plan["visibility"], plan["published"]) == (root_of(story), "public", False)
    assert plan["text"] == STORY
    assert (plan["blocks"], plan["withheld"]) == (BLOCKS, [])
    items = plan["plan"]["items"]
    assert len({item["cid"] for item in items}) == BLOCKS
    assert sum(item["bytes"] for item in items) == plan["bytes"]
    kinds = plan["plan"]["kinds"]
    assert {kind: sums["count"] for kind, sums in kinds.items()} == {
        "root": 1, "model": 1, "segment": 1, "block": 5, "leaf": 5, "tail-leaf": 1,
    }  # fmt: skip
    assert kinds["leaf"]["bytes"] == 5 * LEAF_BYTES
    blocks = [block["cid"] for block in story("--json", "walk", "story").lines]
    assert [item["cid"] for item in items if item["kind"] == "block"] == blocks
    page = story("publish", "story", "--public", "--dry-run").stdout
    assert STORY in page
    assert "cannot be undone" in page
    assert story.json("publish", "story", "--dry-run") == plan  # to look, nobody has to say that it may be public
    assert published(story) == 0


def test_a_long_text_is_shown_by_its_ends_and_given_whole_as_json(cyberkv: Command) -> None:
    text = "".join(f"line {at} of a long text\n" for at in range(88))
    cyberkv("prefill", "-", "--name", "long", stdin=text)
    page = cyberkv("publish", "long", "--public", "--dry-run").stdout
    assert "| line 0 of" in page
    assert "| line 87 of" in page
    assert f"{len(text) - 2000:,} characters more: see them with publish --dry-run --json" in page
    assert cyberkv.json("publish", "long", "--public", "--dry-run")["text"] == text


def test_without_its_model_there_is_no_text_to_show_and_that_is_said(story: Command) -> None:
    (story.home / "models" / "tiny.json").unlink()
    assert story.json("publish", "story", "--public", "--dry-run")["text"] is None
    assert "cannot be shown" in story("publish", "story", "--public", "--dry-run").stdout


def test_publishing_shows_it_on_stderr_and_marks_it(story: Command) -> None:
    result = story("--json", "publish", "story", "--public", "--yes")
    assert result.json["published"] is True
    assert result.json["urls"] == []  # nobody serves it
    assert STORY in result.stderr
    assert published(story) == 1
    [listed] = story.json("list")["conversations"]
    assert listed["public"] is True
    again = story("-q", "publish", "story", "--public", "--yes")
    assert again.stderr == ""
    assert root_of(story) in again.stdout
    assert story.json("publish", "story", "--public", "--dry-run")["plan"]["public_already"] == BLOCKS


def test_who_has_to_get_which_key_is_said(story: Command) -> None:
    assert "trust add" not in story("publish", "story", "--public", "--yes").stderr  # the control: nobody signed
    key = story.json("key", "new")
    said = story("publish", "story", "--public", "--yes").stderr
    assert f"send them `cyberkv trust add {key['signs_as']}`" in said
    assert key["fingerprint"] in said


def test_the_parent_of_a_fork_is_withheld(story: Command) -> None:
    story("fork", "story", "--at", 32, "--name", "short")
    [withheld] = story.json("publish", "short", "--public", "--dry-run")["withheld"]
    assert withheld["cid"] == root_of(story)
    assert withheld["cid"] in story("publish", "short", "--public", "--dry-run").stdout
    story("publish", "story", "--public", "--yes")
    assert story.json("publish", "short", "--public", "--dry-run")["withheld"] == []


def test_a_published_fork_is_listed_by_the_root_to_share(story: Command, elsewhere: Command, tmp_path: Path) -> None:
    story("fork", "story", "--at", 32, "--name", "short")
    private = root_of(story, "short")
    story("publish", "short", "--public", "--dry-run")
    assert root_of(story, "short") == private
    result = story("--json", "publish", "short", "--public", "--yes")
    public = result.json["root"]
    assert public != private
    assert f"short now ends at {public}" in result.stderr
    listed = {each["name"]: each for each in story.json("list")["conversations"]}
    assert (listed["short"]["root"], listed["short"]["public"]) == (public, True)
    assert (listed["story"]["root"], listed["story"]["public"]) == (root_of(story), False)
    logged = story.json("log", "short")["roots"]
    assert [(each["root"], each["public"]) for each in logged] == [(private, False), (public, True)]
    again = story("--json", "publish", "short", "--public", "--yes")
    assert (again.json["root"], "now ends" in again.stderr) == (public, False)
    story("publish", private, "--public", "--yes")  # no longer the head of a name
    assert [each["root"] for each in story.json("log", "short")["roots"]] == [private, public]
    story("publish", "short", "--public", "--yes", "--car", tmp_path / "short.car")
    assert elsewhere.json("fetch", public, "--from", tmp_path / "short.car")["root"] == public
    assert story("fsck").exit_code == 0


def test_a_damaged_conversation_is_not_published(story: Command) -> None:
    leaf = story.json("show", story("--json", "walk", "story").lines[2]["cid"])["node"]["kv"][0]
    story.damage(leaf)
    assert story.error(4, "publish", "story", "--public", "--yes")["cid"] == leaf
    assert published(story) == 0


def test_a_car_file_is_never_written_over_something_else(story: Command, car: Path, tmp_path: Path) -> None:
    assert published(story) == 0
    first = car.read_bytes()
    answer = story.json("publish", "story", "--public", "--yes", "--car", car)
    assert (car.read_bytes(), answer["urls"]) == (first, [car.as_uri()])
    story("prefill", "-", "--name", "other", stdin="Another text altogether.")
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear reader")
    for path in (car, letter):
        before = path.read_bytes()
        assert story.error(5, "publish", "other", "--public", "--yes", "--car", path)["path"] == str(path)
        assert path.read_bytes() == before
    assert story.error(3, "publish", "story", "--public", "--yes", "--car", tmp_path / "no" / "x.car")["path"]


def test_a_fetched_conversation_goes_on_without_its_prefill(story: Command, elsewhere: Command, car: Path) -> None:
    root = root_of(story)
    fetched = elsewhere.json("fetch", root, "--from", car)
    assert (fetched["root"], fetched["name"], fetched["level"]) == (root, "story", "integrity")
    assert (fetched["blocks_total"], fetched["blocks_had"], fetched["blocks_fetched"]) == (BLOCKS, 1, BLOCKS - 1)
    assert fetched["bytes_fetched"] > 85 * 768
    assert (fetched["peers"], fetched["refused"]) == ([str(car)], [])
    assert elsewhere.error(5, "run", "And then?", "--from", "story")["kind"] == "untrusted"
    assert elsewhere.json("fetch", root, "--trust", "unsigned")["usable"]
    goes_on = elsewhere.json("prefill", "-", "--from", "story", stdin=" And then?")
    assert (goes_on["tokens_reused"], goes_on["tokens_computed"]) == (85, 10)
    assert elsewhere("fsck").exit_code == 0


def test_a_second_fetch_moves_nothing(story: Command, elsewhere: Command, car: Path) -> None:
    root = root_of(story)
    elsewhere("fetch", root, "--from", car)
    for again in ([root, "--from", car], [root], ["story"], [root[:12]]):
        fetched = elsewhere.json("fetch", *again)
        assert (fetched["blocks_had"], fetched["blocks_fetched"], fetched["name"]) == (BLOCKS, 0, "story")
    assert len(elsewhere.json("log", "story")["roots"]) == 1


def test_only_what_is_missing_is_fetched(story: Command, elsewhere: Command, car: Path) -> None:
    elsewhere("prefill", "-", "--name", "mine", stdin=STORY[:40])
    fetched = elsewhere.json("fetch", root_of(story), "--from", car)
    assert (fetched["blocks_total"], fetched["blocks_had"]) == (BLOCKS, 1 + 2 * 2)


def test_a_fetch_says_what_it_checked_and_what_it_could_not(story: Command, car: Path, tmp_path: Path) -> None:
    stranger = Command(tmp_path / "stranger")
    result = stranger("fetch", root_of(story), "--from", car, "--name", "theirs")
    assert "who computed them is not known" in result.stdout
    assert "model add" in result.stderr
    assert stranger.json("list")["conversations"][0]["name"] == "theirs"
    assert (stranger.home.stat().st_mode & 0o777) == 0o700


def test_a_name_that_is_taken_is_not_taken_over(story: Command, elsewhere: Command, car: Path) -> None:
    elsewhere("prefill", "-", "--name", "story", stdin="A story of mine.")
    mine = root_of(elsewhere)
    assert elsewhere.json("fetch", root_of(story), "--from", car)["name"] == "story-2"
    assert root_of(elsewhere) == mine
    again = elsewhere("--json", "fetch", root_of(story), "--name", "story")
    assert (again.json["name"], f"story names {mine} so far" in again.stderr) == ("story", True)
    assert [each["root"] for each in elsewhere.json("log", "story")["roots"]] == [mine, root_of(story)]


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("\x1b[2J evil\nname", "2j-evil-name"), ("--json", "json"), ("../../x", "x"), ("bafyreibaaaa", "conversation"),
        ("x" * 255, "x" * 255), ("x" * 256, "x" * 40),
    ],
)  # fmt: skip
def test_a_foreign_title_makes_a_harmless_name(title: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "evil.car"
    with MemoryStore() as store, Index(tmp_path / "index") as index:
        root = record(store, seed=title)
        publish_car(store, plan_publish(store, index, root, "public"), path)
    command = Command(tmp_path / "home")
    assert command.json("fetch", root, "--from", path)["name"] == name
    assert command.json("show", str(root)[:20])["cid"] == str(root)


def test_what_is_nowhere_is_not_found(elsewhere: Command, tmp_path: Path) -> None:
    absent = str(Cid.of(b"absent", "dag-cbor", "sha2-256"))
    error = elsewhere.error(3, "fetch", absent)
    assert (error["kind"], "--from" in error["hint"]) == ("block-not-found", True)
    assert elsewhere.error(3, "fetch", "no-such-name")["kind"] == "name-not-found"
    assert elsewhere.error(3, "fetch", absent, "--from", tmp_path / "no.car")["path"]
    assert elsewhere.error(2, "fetch", absent, "--name", " ")["kind"] == "bad-reference"
    assert elsewhere.error(4, "fetch", absent[:-1] + "!")["kind"] == "malformed-cid"
    stranger = Command(tmp_path / "stranger")
    for line in ([absent], [absent, "--from", tmp_path / "no.car"], ["name", "--from", tmp_path / "no.car"]):
        stranger.error(3, "fetch", *line)
    assert "--from" in stranger.error(3, "fetch", absent)["hint"]
    assert "whole CID" in elsewhere.error(3, "fetch", absent[:20], "--from", "http://127.0.0.1:1")["hint"]
    assert "whole CID" in stranger.error(3, "fetch", absent[:20], "--from", "http://127.0.0.1:1")["hint"]
    assert not stranger.home.exists()


@pytest.mark.parametrize("source", ["http://127.0.0.1:1", "127.0.0.1:1", "localhost:1"])
def test_a_gateway_that_is_not_there(elsewhere: Command, source: str) -> None:
    absent = Cid.of(b"absent", "dag-cbor", "sha2-256")
    error = elsewhere.error(7, "fetch", absent, "--from", source)
    assert error["kind"] == "peer-unreachable"
    assert error["peer"] == f"http://{source.removeprefix('http://')}"
    assert elsewhere.error(7, "fetch", f"http://127.0.0.1:1/ipfs/{absent}")["peer"] == "http://127.0.0.1:1"
    assert elsewhere.json("list")["conversations"] == []


@pytest.mark.parametrize("source", ["ftp://127.0.0.1", "http://user:hunter2@127.0.0.1:1", "http://a/b"])
def test_a_source_that_is_no_gateway_is_a_mistake_of_the_command_line(elsewhere: Command, source: str) -> None:
    absent = Cid.of(b"absent", "dag-cbor", "sha2-256")
    error = elsewhere.error(2, "fetch", absent, "--from", source)
    assert (error["kind"], "hunter2" in str(error)) == ("bad-reference", False)
    assert elsewhere.json("list")["conversations"] == []


def test_an_altered_block_is_named(story: Command, elsewhere: Command, car: Path) -> None:
    leaf = story.json("show", story("--json", "walk", "story").lines[2]["cid"])["node"]["kv"][0]
    car.write_bytes(flipped(car.read_bytes(), story))
    error = elsewhere.error(4, "fetch", root_of(story), "--from", car)
    assert error["cid"] == leaf
    assert leaf in error["message"]
    assert [each["cid"] for each in error["refused"]] == [leaf]


def test_a_conversation_larger_than_allowed_is_refused(story: Command, elsewhere: Command, car: Path) -> None:
    plan = story.json("publish", "story", "--public", "--dry-run")
    promised = sum(plan["plan"]["kinds"][kind]["bytes"] for kind in ("leaf", "tail-leaf"))
    error = elsewhere.error(5, "fetch", root_of(story), "--from", car, "--max-bytes", promised - 1)
    assert (error["size_bytes"], "--max-bytes" in error["hint"]) == (promised, True)
    assert elsewhere.error(5, "fetch", root_of(story), "--from", car, "--max-bytes", promised)["bytes_fetched"] > 0
    fetched = elsewhere.json("fetch", root_of(story), "--from", car, "--max-bytes", plan["bytes"])
    assert fetched["blocks_had"] + fetched["blocks_fetched"] == BLOCKS


def test_a_disk_without_room_is_said_before_anything_is_brought(
    story: Command, elsewhere: Command, car: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(elsewhere.home)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=5 * LEAF_BYTES - 1))
    error = elsewhere.error(8, "fetch", root_of(story), "--from", car)
    assert (error["kind"], error["needed_bytes"], error["free_bytes"]) == ("full", 5 * LEAF_BYTES, 5 * LEAF_BYTES - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert elsewhere.json("fetch", root_of(story), "--from", car)["blocks_total"] == BLOCKS


def test_a_path_that_is_too_long_is_a_mistake_of_the_command_line(story: Command, tmp_path: Path) -> None:
    for line in (["publish", "story", "--public", "--yes", "--car", tmp_path / ("x" * 300)],
                 ["publish", "story", "--public", "--yes", "--car", "/" + "y/" * 3000]):  # fmt: skip
        assert "longer than" in story.error(2, *line)["message"]
    story("publish", "story", "--public", "--yes", "--car", tmp_path / ("x" * 251 + ".car"))


def flipped(data: bytes, story: Command) -> bytes:
    leaf = story.json("show", story("--json", "walk", "story").lines[2]["cid"])["node"]["kv"][0]
    with DiskStore(story.home / "store", read_only=True) as store:
        at = data.index(store.get(Cid.parse(leaf)))
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def cut(data: bytes, _story: Command) -> bytes:
    return data[:-1]


def test_where_nothing_came_the_error_does_not_say_that_something_is_kept(
    story: Command, elsewhere: Command, car: Path
) -> None:
    other = story.json("prefill", "-", "--name", "other", stdin="Another text.")["root"]
    error = elsewhere.error(3, "fetch", other, "--from", car)
    assert error["missing"] == [other]
    assert "check the CID" in error["hint"]
    assert "kept" not in error["hint"]


@pytest.mark.parametrize(("spoil", "kind"), [(flipped, "digest-mismatch"), (cut, "truncated-car")])
def test_a_spoilt_file_is_refused_and_what_was_right_is_kept(
    spoil: Callable[[bytes, Command], bytes], kind: str, story: Command, elsewhere: Command, car: Path
) -> None:
    root, right = root_of(story), car.read_bytes()
    car.write_bytes(spoil(right, story))
    error = elsewhere.error(4, "fetch", root, "--from", car)
    assert error["kind"] == kind
    assert "fetch again" in error["hint"]
    assert elsewhere.json("list")["conversations"] == []
    assert elsewhere.json("fsck")["ok"] is True
    assert elsewhere.error(3, "show", error["cid"])["kind"] == "block-not-found"
    car.write_bytes(right)
    fetched = elsewhere.json("fetch", root, "--from", car)
    assert fetched["blocks_had"] > 1
    assert fetched["blocks_had"] + fetched["blocks_fetched"] == BLOCKS


def test_another_source_makes_good_what_the_first_spoilt(story: Command, elsewhere: Command, car: Path) -> None:
    spoilt = car.with_name("spoilt.car")
    spoilt.write_bytes(flipped(car.read_bytes(), story))
    result = elsewhere("--json", "fetch", root_of(story), "--from", spoilt, "--from", car)
    # Which of the two is asked for the altered leaf first is not known.
    assert {refusal["peer"] for refusal in result.json["refused"]} <= {str(spoilt)}
    assert [each["peer"] for each in result.json["sources"]] == [str(spoilt), str(car)]
    assert sum(each["blocks"] for each in result.json["sources"]) == result.json["blocks_fetched"]
    assert json.loads(elsewhere("--json", "verify", "story").stdout)["failed"] == []


def sources(command: Command) -> dict[str, list[str]]:
    with Index(command.home / "index", read_only=True) as index:
        return {str(root): named for root, named in index.sources().items()}


def test_only_what_gave_something_is_remembered(story: Command, elsewhere: Command, car: Path) -> None:
    root, useless = root_of(story), car.with_name("useless.car")
    other = story.json("prefill", "-", "--name", "other", stdin="Another story.")["root"]
    story("publish", "other", "--public", "--yes", "--car", useless)
    elsewhere("fetch", root, "--from", useless, "--from", car)
    assert sources(elsewhere) == {root: [str(car)]}
    elsewhere("fetch", other, "--from", useless)
    assert sources(elsewhere) == {root: [str(car)], other: [str(useless)]}
    elsewhere("fetch", root, "--from", useless)  # nothing was lacking, so nothing was given
    assert sources(elsewhere)[root] == [str(car)]


def test_what_was_computed_here_does_not_come_from_its_copy(story: Command, elsewhere: Command, tmp_path: Path) -> None:
    root, copy = root_of(story), tmp_path / "backup.car"
    with DiskStore(story.home / "store", read_only=True) as store, copy.open("wb") as out:
        write_car(out, [Cid.parse(root)], contents(store, Cid.parse(root)).items())
        leaf = str(next(cid for cid in store.cids() if cid.codec == "raw"))
    story.damage(leaf)
    assert not story("--json", "fsck", "--repair", ok=False).json["ok"]
    assert story.json("fetch", root, "--from", copy)["blocks_fetched"] == 1
    assert sources(story) == {}
    used_bytes = story.json("stats")["used_bytes"]
    assert story.error(8, "gc", "--cap", str(used_bytes - 1))["kind"] == "full"
    # The control: where it really came from there, that is remembered, and its leaves may go.
    elsewhere("fetch", root, "--from", copy)
    assert sources(elsewhere) == {root: [str(copy)]}
    used_bytes = elsewhere.json("stats")["used_bytes"]
    assert elsewhere.json("gc", "--cap", str(used_bytes - 1))["evicted_leaves"] > 0
    # What it lacks then it gets from there; without the file nothing more may go.
    copy.unlink()
    used_bytes = elsewhere.json("stats")["used_bytes"]
    assert "only copy" in elsewhere.error(8, "gc", "--cap", str(used_bytes - 1))["message"]


def test_a_whole_file_of_something_else_does_not_help(story: Command, elsewhere: Command, car: Path) -> None:
    absent = Cid.of(b"absent", "dag-cbor", "sha2-256")
    assert elsewhere.error(3, "fetch", absent, "--from", car)["kind"] == "block-not-found"
