"""Readers over the life of a conversation: who signs, who is kept out, and what a mistake leaves behind."""

from pathlib import Path

import pytest

from cyberkv.cli.identities import FILE_VARIABLE
from cyberkv.cybergraph.chain import closure
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import DiskStore
from cyberkv.cybergraph.transfer import sealed as transfer
from tests.cli.conftest import Command


@pytest.fixture
def first(tmp_path: Path) -> Command:
    return Command(tmp_path / "first")


@pytest.fixture
def second(tmp_path: Path) -> Command:
    return Command(tmp_path / "second")


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

    monkeypatch.setattr(transfer, "_sign", killed)
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
