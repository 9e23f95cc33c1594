"""Readers over the life of a conversation: who signs, who is kept out, and what a mistake leaves behind."""

import fcntl
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from cyberkv.cli.identities import FILE_VARIABLE
from cyberkv.cybergraph.chain import closure
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import DiskStore
from cyberkv.cybergraph.transfer import granting
from tests.cli.conftest import Command


def public_key(command: Command, *options: str) -> str:
    command.json("key", "new")
    key: str = command.json("key", "show", *options)["public"]
    return key


def readers_of(command: Command) -> list[str]:
    return [each["fingerprint"] for each in command.json("grant", "list", "story")["grants"][0]["readers"]]


@pytest.mark.parametrize(
    "line", [("add", "story"), ("revoke", "story", "--reencrypt"), ("rotate", "story", "--reencrypt")]
)
def test_grants_are_signed_by_the_key_that_began(
    story: Command, first: Command, second: Command, tmp_path: Path, line: tuple[str, ...]
) -> None:
    """Readers know a lineage by who signs it: under another key, what was sealed would open for nobody."""
    story.json("key", "new")
    story.json("key", "new", "work")
    story.json("publish", "story", "--to", public_key(first), "--key", "work")
    before, other = readers_of(story), public_key(second)
    who = {"add": [other], "revoke": before, "rotate": []}[line[0]]
    error = story.error(2, "grant", *line, *who)
    assert "another key" in error["message"]
    listed = story.json("grant", "list", "story")["grants"][0]
    assert (listed["epoch"], readers_of(story)) == (1, before)  # nothing has begun

    story.json("grant", *line, *who, "--key", "work")  # control: under the right one it goes on
    car = tmp_path / "sealed.car"
    again = story.json("publish", "story", "--to", other, "--key", "work", "--car", car)
    assert second.json("fetch", again["root"], "--from", car)["sealed"]["epoch"] == again["epoch"]


def test_sealing_again_serves_nothing_of_the_epochs_before(story: Command, first: Command, second: Command) -> None:
    roots = [
        story.json("publish", "story", "--to", public_key(first))["root"],
        story.json("grant", "add", "story", public_key(second), "--label", "second")["root"],
    ]
    with Index(story.home / "index") as index, DiskStore(story.home / "store", read_only=True) as store:
        old = set(closure(store, *map(Cid.parse, roots)))
        assert all(map(index.is_public, old))
    new = Cid.parse(story.json("grant", "revoke", "story", "second", "--reencrypt")["root"])
    with Index(story.home / "index") as index, DiskStore(story.home / "store", read_only=True) as store:
        assert index.published() == [new]
        assert all(map(index.is_public, closure(store, new)))
        assert not any(map(index.is_public, old))
    assert story.json("gc")["nodes"] > 0
    assert story("fsck").exit_code == 0


def test_of_two_epochs_published_one_by_one_both_are_served(story: Command, first: Command) -> None:
    """Control: without `--reencrypt` what was published stays."""
    old = story.json("publish", "story", "--to", public_key(first))["root"]
    story.json("grant", "rotate", "story")
    new = story.json("publish", "story", "--to", "readers")["root"]
    with Index(story.home / "index") as index:
        assert set(map(str, index.published())) == {old, new}


def test_a_key_for_which_nothing_can_be_wrapped_is_not_listed(story: Command, first: Command, second: Command) -> None:
    story.json("publish", "story", "--to", public_key(first, "--pq"), "--pq")
    before, short = readers_of(story), public_key(second)
    for line in (("grant", "add", "story", short), ("publish", "story", "--to", short)):
        assert "key show --pq" in story.error(6, *line)["hint"]
        assert readers_of(story) == before
    story.json("publish", "story", "--to", "readers")  # the others are not locked out by it
    story.json("grant", "add", "story", second.json("key", "show", "--pq")["public"])
    assert len(readers_of(story)) == 2


def test_who_has_access_is_on_the_list_before(
    story: Command, first: Command, second: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.json("publish", "story", "--to", public_key(first))

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(granting, "sign_access", killed)
    story("grant", "add", "story", public_key(second), ok=False)
    assert len(readers_of(story)) == 2


def test_a_key_under_a_passphrase_is_not_asked_for_where_another_opens(
    story: Command, first: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, car = tmp_path / "words", tmp_path / "sealed.car"
    words.write_text("open sesame\n")
    monkeypatch.setenv(FILE_VARIABLE, str(words))
    first.json("key", "new", "a-safe", "--passphrase")
    monkeypatch.delenv(FILE_VARIABLE)
    root = story.json("publish", "story", "--to", public_key(first), "--car", car)["root"]
    assert first.json("fetch", root, "--from", car)["sealed"]["epoch"] == 1

    other = tmp_path / "other.car"
    safe = first.home / "keys" / "a-safe.key"
    (first.home / "keys" / "me.key").rename(tmp_path / "me.key")
    monkeypatch.setenv(FILE_VARIABLE, str(words))
    public = first.json("key", "show", "a-safe")["public"]
    monkeypatch.delenv(FILE_VARIABLE)
    (tmp_path / "me.key").rename(first.home / "keys" / "me.key")
    assert safe.exists()
    root = story.json("publish", "story", "--link", "--car", other)["root"]
    assert first.json("fetch", root, "--from", other)["sealed"]["epoch"] == 1  # `me` is a reader still
    story.json("grant", "revoke", "story", readers_of(story)[0])
    root = story.json("publish", "story", "--to", public, "--car", other)["root"]
    assert "no terminal" in first.error(6, "fetch", root, "--from", other)["message"]
    monkeypatch.setenv(FILE_VARIABLE, str(words))
    assert first.json("fetch", root, "--from", other)["sealed"]["epoch"] == 2


def test_the_passphrase_of_a_key_does_not_become_the_password_of_a_link(
    story: Command, first: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever gets the link gets its password, too."""
    words, car = tmp_path / "words", tmp_path / "sealed.car"
    words.write_text("open sesame\n")
    monkeypatch.setenv(FILE_VARIABLE, str(words))
    error = story.error(6, "publish", "story", "--link", "--password", "--car", car)
    assert "--password-file" in error["hint"]
    link = story.json("publish", "story", "--link", "--password-file", words, "--car", car)["link"]  # control
    first.error(6, "fetch", link, "--from", car)
    assert first.json("fetch", link, "--from", car, "--password-file", words)["sealed"]["epoch"] == 1


def test_the_same_again_keeps_its_address_and_nothing_is_stored(story: Command, first: Command) -> None:
    key = public_key(first)
    done = story.json("publish", "story", "--to", key)
    before = story.json("stats")
    again = story.json("publish", "story", "--to", key)
    for each in (again, story.json("publish", "story", "--to", "readers"), story.json("grant", "add", "story", key)):
        assert each["root"] == done["root"]
    assert (done["unchanged"], again["unchanged"]) == (False, True)
    assert (again["blocks"], again["bytes"]) == (done["blocks"], done["bytes"])
    assert story.json("stats")["bytes"] == before["bytes"]
    story.json("grant", "add", "story", key, "--label", "another label")
    assert story.json("publish", "story", "--to", "readers")["root"] == done["root"]
    # The control: what differs has an address of its own.
    story.json("key", "new", "second")
    second = story.json("key", "show", "second")["public"]
    other = story.json("publish", "story", "--to", second)["root"]
    story("run", " And", "--from", "story", "--max-tokens", "1")
    grown = story.json("publish", "story", "--to", "readers")["root"]
    story("grant", "rotate", "story")
    assert len({done["root"], other, grown, story.json("publish", "story", "--to", "readers")["root"]}) == 4


def test_what_was_lost_since_is_stored_again_under_the_same_address(story: Command, first: Command) -> None:
    root = story.json("publish", "story", "--to", public_key(first))["root"]
    with DiskStore(story.home / "store") as store:
        leaf = next(cid for cid in closure(store, Cid.parse(root)) if cid.codec == "raw")
        store.delete_many([leaf])
    again = story.json("publish", "story", "--to", "readers")
    assert (again["root"], again["unchanged"]) == (root, False)
    with DiskStore(story.home / "store", read_only=True) as store:
        assert store.has(leaf)


def backup(story: Command) -> Path:
    return Path(shutil.copytree(story.home / "access" / "given", story.home.with_name("backup")))


def put_back(story: Command, copy: Path) -> None:
    shutil.rmtree(story.home / "access" / "given")
    shutil.copytree(copy, story.home / "access" / "given")


def test_an_old_copy_of_what_is_kept_gives_no_epoch_a_second_key(
    story: Command, first: Command, second: Command, tmp_path: Path
) -> None:
    story.json("publish", "story", "--to", public_key(first))
    copy, other = backup(story), public_key(second)
    story.json("grant", "rotate", "story")
    story.json("publish", "story", "--to", "readers")
    put_back(story, copy)
    before = {path: path.read_bytes() for path in (story.home / "access").rglob("*") if path.is_file()}
    reader = readers_of(story)[0]
    for line in (
        ("publish", "story", "--to", "readers"), ("publish", "story", "--link", "--car", tmp_path / "x.car"),
        ("grant", "add", "story", other), ("grant", "revoke", "story", reader),
        ("grant", "revoke", "story", reader, "--reencrypt"),
    ):  # fmt: skip
        error = story.error(5, *line)
        assert (error["kind"], error["epoch"], error["seen"]) == ("refused", 1, 2)
        assert "grant rotate" in error["hint"]
    assert {path: path.read_bytes() for path in (story.home / "access").rglob("*") if path.is_file()} == before
    result = story("--json", "grant", "rotate", "story", "--reencrypt")  # what the hint says: an epoch nobody has seen
    assert (result.json["epoch"], "look at its readers" in result.stderr) == (3, True)
    car = tmp_path / "sealed.car"
    root = story.json("publish", "story", "--to", "readers", "--car", car)["root"]
    assert first.json("fetch", root, "--from", car)["sealed"]["epoch"] == 3


def test_two_keys_of_one_epoch_are_refused_where_they_would_be_made(story: Command, first: Command) -> None:
    story.json("publish", "story", "--to", public_key(first))
    copy = backup(story)
    story.json("grant", "rotate", "story")
    root = story.json("publish", "story", "--to", "readers")["root"]
    put_back(story, copy)
    (seen,) = (story.home / "access" / "seen").iterdir()
    known = seen.read_bytes()
    seen.unlink()  # the control: without this memory a second key of the epoch is made
    assert story.json("grant", "rotate", "story")["epoch"] == 2
    seen.write_bytes(known)
    error = story.error(5, "publish", "story", "--to", "readers")
    assert (error["kind"], error["epoch"], error["seen"]) == ("refused", 2, 2)
    with Index(story.home / "index") as index:
        assert Cid.parse(root) in index.published()


def test_a_copy_of_the_same_epoch_goes_on(story: Command, first: Command) -> None:
    done = story.json("publish", "story", "--to", public_key(first))
    put_back(story, backup(story))
    assert story.json("publish", "story", "--to", "readers")["root"] == done["root"]


@contextmanager
def held(story: Command) -> Iterator[None]:
    """Be another command that gives access."""
    with (story.home / "access" / "giving" / "lock").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize(
    "line", [("publish", "story", "--to", "readers"), ("grant", "rotate", "story"), ("forget", "story")]
)
def test_who_waits_for_another_says_so(story: Command, first: Command, line: tuple[str, ...]) -> None:
    story.json("publish", "story", "--to", public_key(first))
    assert "waits" not in story("grant", "rotate", "story", "--older-than", "1").stderr
    queue = Path("/proc/locks")
    with ThreadPoolExecutor(1) as other:
        with held(story):
            waiting = other.submit(story, *line)
            inode = (story.home / "access" / "giving" / "lock").stat().st_ino
            while not any("->" in row and f":{inode} " in row for row in queue.read_text().splitlines()):
                assert not waiting.done(), waiting.result()
                time.sleep(0.01)
        assert "this one waits until it is done" in waiting.result().stderr


@pytest.mark.parametrize("field", ["started", "readers", "key", "last", "name"])
def test_a_damaged_file_is_told_with_its_place(story: Command, first: Command, field: str) -> None:
    from cyberkv.cybergraph.dagcbor import decode, encode

    story.json("publish", "story", "--to", public_key(first))
    [path] = (story.home / "access" / "given").iterdir()
    value = decode(path.read_bytes())
    assert isinstance(value, dict)
    path.write_bytes(encode({**value, field: "last winter"}))
    reader = first.json("key", "list")["keys"][0]["fingerprint"]
    for line in (
        ("grant", "list"), ("grant", "list", "story"), ("grant", "rotate", "story", "--older-than", "1"),
        ("grant", "revoke", "story", reader), ("grant", "add", "story", first.json("key", "show")["public"]),
        ("publish", "story", "--to", "readers"), ("publish", "story", "--to", "readers", "--dry-run"),
    ):  # fmt: skip
        error = story.error(4, *line)
        assert (error["kind"], str(path) in error["hint"]) == ("corrupt", True)
