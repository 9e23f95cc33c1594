"""Publishing for some, from the command line: keys, grants, links, and what nobody else learns."""

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from cyberkv.cli.identities import FILE_VARIABLE
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.prefix import prefix_keys
from cyberkv.cybergraph.store import DiskStore
from tests.cli.conftest import STORY, Command, public_key

Someone = Callable[[str], Command]


@pytest.fixture
def someone(tmp_path: Path) -> Someone:
    """Give somebody's home."""
    return lambda name: Command(tmp_path / name)


def test_a_reader_gets_the_conversation_and_somebody_else_does_not(story: Command, someone: Someone, car: Path) -> None:
    reader, stranger = someone("reader"), someone("stranger")
    sealed = story.json("publish", "story", "--to", public_key(reader), "--car", car)
    assert (sealed["visibility"], sealed["epoch"], sealed["link"]) == ("sealed", 1, None)
    got = reader.json("fetch", sealed["root"], "--from", car)
    assert got["root"] == story.json("show", "story")["cid"]
    assert got["sealed"]["epoch"] == 1
    texts = [[line["tokens"] for line in each("--json", "walk", "story").lines] for each in (story, reader)]
    assert texts[0] == texts[1]
    assert reader("fsck").exit_code == 0

    error = stranger.error(6, "fetch", sealed["root"], "--from", car)
    assert error["kind"] == "not-a-recipient"
    assert "key new" in error["hint"]
    public_key(stranger)
    error = stranger.error(6, "fetch", sealed["root"], "--from", car)
    assert "grant add" in error["hint"]
    assert story("fsck").exit_code == 0


def test_a_link_opens_by_itself(story: Command, someone: Someone, car: Path) -> None:
    link = story.json("publish", "story", "--link", "--car", car)["link"]
    reader = someone("reader")
    got = reader.json("fetch", link, "--from", car)
    assert got["root"] == story.json("show", "story")["cid"]
    piped = someone("piped").json("fetch", "-", "--from", car, stdin=link + "\n")
    assert piped["root"] == got["root"]
    secret = link.split("#")[1]
    for file in reader.home.rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes()
    for bad in (link[:-3], link.replace("#v1.", "#v9."), link.partition("#")[0]):
        result = reader("--json", "fetch", bad, "--from", car, ok=False)
        assert result.exit_code == 2
        assert secret[5:25] not in result.stdout + result.stderr


def test_a_link_with_a_password(story: Command, someone: Someone, car: Path, tmp_path: Path) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("correct horse\n")
    wrong.write_text("battery staple\n")
    link = story.json("publish", "story", "--link", "--password-file", right, "--car", car)["link"]
    reader = someone("reader")
    assert reader.error(6, "fetch", link, "--from", car)["kind"] == "bad-key"
    assert reader.error(6, "fetch", link, "--from", car, "--password-file", wrong)["kind"] == "bad-key"
    assert reader.json("fetch", link, "--from", car, "--password-file", right)["blocks_fetched"]
    story.error(2, "publish", "story", "--public", "--password-file", right)


def test_nothing_that_left_has_a_trace_of_the_text(story: Command, someone: Someone, car: Path) -> None:
    reader = someone("reader")
    key = public_key(reader)
    story.json("publish", "story", "--to", key, "--link", "--car", car)
    story.json("publish", "story", "--to", key)  # to be served as well
    left = car.read_bytes()
    with Index(story.home / "index") as index, DiskStore(story.home / "store") as store:
        public = [cid for cid in store.cids() if index.is_public(cid)]
        private = [cid for cid in store.cids() if not index.is_public(cid)]
        assert public
        assert all(cid in left for cid in public)
        for cid in private:
            assert cid not in left
            assert cid.digest not in left
            assert store.get(cid)[:64] not in left
    blocks = story("--json", "walk", "story").lines
    tokens = [token for block in blocks for token in block["tokens"]]
    model = Cid.parse(story.json("show", "story")["node"]["model"])
    for word in (STORY.encode()[:12], b"story", b"reader", str(story.home).encode()):
        assert word not in left
    assert not any(key in left for key in prefix_keys(model, tokens, len(blocks[0]["tokens"])))
    identity = story.json("key", "list")["keys"][0]
    assert identity["fingerprint"].encode() not in left


def test_readers_are_added_listed_and_revoked(story: Command, someone: Someone, car: Path, tmp_path: Path) -> None:
    first, second = someone("first"), someone("second")
    sealed = story.json("publish", "story", "--to", public_key(first))
    added = story.json("grant", "add", "story", public_key(second), "--label", "second")
    assert added["root"] != sealed["root"]
    assert {each["label"] for each in added["readers"]} >= {"second"}
    story.json("publish", "story", "--to", "readers", "--car", car)
    listed = story.json("grant", "list", "story")["grants"][0]
    assert len(listed["readers"]) == 2
    for reader in (first, second):
        assert reader.json("fetch", listed["sealed"], "--from", car)["sealed"]["epoch"] == 1

    result = story("--json", "grant", "revoke", "story", "second", "--reencrypt")
    assert result.json["epoch"] == 2
    assert "cannot recall" in result.stderr
    new = story.json("publish", "story", "--to", "readers", "--car", tmp_path / "second.car")
    assert new["epoch"] == 2
    assert first.json("fetch", new["root"], "--from", tmp_path / "second.car")["sealed"]["epoch"] == 2
    assert second.error(6, "fetch", new["root"], "--from", tmp_path / "second.car")["kind"] == "not-a-recipient"
    error = first.error(6, "fetch", listed["sealed"], "--from", car)  # an old copy, after the new one was seen
    assert (error["epoch"], error["seen"]) == (1, 2)
    with Index(story.home / "index") as index:
        assert not index.is_public(Cid.parse(listed["sealed"]))
        assert index.is_public(Cid.parse(new["root"]))
    story.error(2, "grant", "revoke", "story", "nobody")


def test_a_reader_is_revoked_by_what_added_them(story: Command, someone: Someone, tmp_path: Path) -> None:
    saved, stranger = tmp_path / "b.pub", tmp_path / "c.pub"
    saved.write_text(f"{public_key(someone('b'))}\n")
    stranger.write_text(f"{public_key(someone('c'))}\n")
    story("publish", "story", "--to", public_key(someone("a")))
    added = story.json("grant", "add", "story", saved, "--label", "b")["readers"]
    assert "are called" in story.error(2, "grant", "revoke", "story", stranger)["message"]  # the control
    left = story.json("grant", "revoke", "story", saved)["readers"]
    assert [each for each in added if each not in left] == [each for each in added if each["label"] == "b"]
    stranger.write_text("no key\n")
    for verb in ("add", "revoke"):
        assert "no public key" in story.error(2, "grant", verb, "story", stranger)["message"]


def test_rotating_by_age(story: Command, someone: Someone) -> None:
    story.json("publish", "story", "--to", public_key(someone("reader")))
    assert story.json("grant", "rotate", "story", "--older-than", "30")["epoch"] == 1
    assert story.json("grant", "rotate", "story", "--older-than", "0")["epoch"] == 2
    assert story.json("publish", "story", "--to", "readers")["epoch"] == 2


@pytest.mark.parametrize("line", [
    ["--public", "--link"], ["--password"], ["--pq"], ["--public", "--key", "me", "--no-sign"],
    ["--to", "x", "--sign"], ["--to", "nonsense"], ["--to", "readers"],
])  # fmt: skip
def test_options_that_contradict_one_another(story: Command, line: list[str]) -> None:
    story.error(2, "publish", "story", *line)
    assert story.json("stats")["published"] == 0


def test_a_dry_run_seals_nothing(story: Command, someone: Someone) -> None:
    plan = story.json("publish", "story", "--to", public_key(someone("reader")), "--dry-run")
    assert (plan["published"], plan["text"]) == (False, STORY)
    assert not (story.home / "access").exists()
    assert not (story.home / "keys").exists()


def test_keys_are_made_shown_moved_and_guarded(
    cyberkv: Command, someone: Someone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cyberkv.json("key", "new")
    assert cyberkv.json("key", "show")["public"] == made["public"]
    assert len(cyberkv.json("key", "show", "--pq")["public"]) > 2000
    assert cyberkv.error(5, "key", "new")["kind"] == "refused"
    cyberkv.json("key", "export", "me", tmp_path / "plain", "--plain")
    assert stat.S_IMODE((tmp_path / "plain").stat().st_mode) == 0o600
    cyberkv.error(5, "key", "export", "me", tmp_path / "plain", "--plain")
    (tmp_path / "words").write_text("open sesame\n")
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "words"))
    cyberkv.json("key", "export", "me", tmp_path / "locked")
    other = someone("other")
    assert other.json("key", "import", tmp_path / "locked", "--name", "mine")["public"] == made["public"]
    assert other.json("key", "list")["keys"] == [{"name": "mine", "locked": True, "fingerprint": None, "public": None}]
    (tmp_path / "words").write_text("wrong\n")
    assert other.error(6, "key", "show", "mine")["kind"] == "bad-key"
    monkeypatch.delenv(FILE_VARIABLE)
    assert "terminal" in other.error(6, "key", "show", "mine")["message"]
    (cyberkv.home / "keys" / "me.key").chmod(0o644)
    assert "open to others" in cyberkv.error(6, "key", "show")["message"]
    secret = (tmp_path / "plain").read_bytes()[-32:].hex()
    assert secret not in str(cyberkv("-v", "-v", "key", "show", ok=False))


def test_a_sealed_conversation_is_neither_verified_nor_resumed_by_its_sealed_root(story: Command) -> None:
    root = story.json("publish", "story", "--link")["root"]
    assert story.json("show", root)["node"]["type"] == "cyberkv/sealed"
    assert story.error(2, "walk", root)["kind"] == "bad-reference"
    before = story.json("stats")["bytes"]
    story("gc")
    assert story.json("stats")["bytes"] == before
    assert story.json("list")["conversations"][0]["name"] == "story"
    assert story.json("why", "something else")
    assert story("index", "rebuild").exit_code == 0
    assert story("fsck").exit_code == 0


def test_a_key_is_read_from_what_key_show_printed(story: Command, someone: Someone, tmp_path: Path) -> None:
    reader, saved, two = someone("reader"), tmp_path / "b.pub", tmp_path / "two.pub"
    public = public_key(reader)
    page = reader("key", "show").stdout
    saved.write_text(page)
    two.write_text(page + someone("other")("key", "new").stdout)
    signs_as = reader.json("key", "show")["signs_as"]
    assert signs_as in page
    assert story.json("trust", "add", saved)["key"] == signs_as
    assert story.json("trust", "add", signs_as)["new"] is False
    by_text = story.json("publish", "story", "--to", public)["readers"]
    assert story.json("publish", "story", "--to", saved)["readers"] == by_text
    assert story.json("grant", "add", "story", saved)["readers"] == by_text
    assert "no public key" in story.error(2, "trust", "add", two)["message"]  # whose?


def test_what_to_type_elsewhere_is_said(story: Command, someone: Someone, car: Path, tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.write_text("correct horse\n")
    given = story("publish", "story", "--to", public_key(someone("reader"))).stdout.splitlines()
    root = story.json("grant", "list", "story")["grants"][0]["sealed"]
    assert given[-1].endswith(f"elsewhere: cyberkv fetch {root} --from URL")
    linked = story("publish", "story", "--link", "--password-file", words)
    assert linked.stdout.splitlines()[-1].endswith("elsewhere: cyberkv fetch LINK --from URL")
    assert "its password" in linked.stderr
    bare = story("publish", "story", "--link", "--car", car)
    assert bare.stdout.splitlines()[-1] == "elsewhere: cyberkv fetch LINK --from FILE"
    assert "password" not in bare.stderr


def test_an_epoch_that_is_not_published_is_listed_so(story: Command, someone: Someone) -> None:
    story("publish", "story", "--to", public_key(someone("reader")))
    assert story.json("grant", "list")["grants"][0]["published"] is True
    assert "not published" not in story("grant", "list").stdout
    story("grant", "rotate", "story")
    assert story.json("grant", "list")["grants"][0]["published"] is False
    assert "not published yet" in story("grant", "list").stdout
