"""`serve --require-proof` and `fetch`, as processes: a reader proves access by itself, a stranger gets nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.nodes import Grant, Sealed
from cyberkv.cybergraph.store import DiskStore
from tests.cli.conftest import Command
from tests.cli.test_access import public_key
from tests.cli.test_serve import status
from tests.cli.test_serve_files import served
from tests.compat.certificate import make_certificate

Someone = Callable[[str], Command]


@pytest.fixture
def someone(tmp_path: Path) -> Someone:
    return lambda name: Command(tmp_path / name)


def sealed_blocks(home: Path) -> list[Cid]:
    """The sealed leaves and pages of a home in which nothing else is published."""
    with Index(home / "index") as index, DiskStore(home / "store") as store:
        return [cid for cid in store.cids() if cid.codec == "raw" and index.is_public(cid)]


def test_a_reader_and_somebody_with_the_link_get_it_and_a_stranger_does_not(
    story: Command, someone: Someone, tmp_path: Path
) -> None:
    reader, stranger, friend = someone("reader"), someone("stranger"), someone("friend")
    public_key(stranger)
    sealed = story.json("publish", "story", "--to", public_key(reader), "--link")
    root, link = sealed["root"], sealed["link"]
    blocks = sealed_blocks(story.home)
    assert len(blocks) > 5
    with served(story.home) as (said, _):
        assert {status(f"{said['url']}/ipfs/{cid}?format=raw") for cid in blocks} == {200}
    with served(story.home, "--require-proof") as (said, lines):
        url = said["url"]
        codes = [status(f"{url}/ipfs/{cid}?format=raw") for cid in blocks]
        assert sorted(set(codes)) == [401, 404]
        assert codes.count(401) == 1  # the manifest, which the root names
        assert stranger.error(6, "fetch", root, "--from", url)["kind"] == "not-a-recipient"
        got = reader("-v", "-v", "--json", "fetch", root, "--from", url)
        assert got.json["root"] == story.json("show", "story")["cid"]
        assert friend.json("fetch", link, "--from", url)["root"] == got.json["root"]
        assert status(f"{url}/metrics") == 200
    assert "earer" not in got.stdout + got.stderr + "".join(lines)
    for home in (reader.home, story.home):
        for file in home.rglob("*"):
            assert not file.is_file() or b"Bearer" not in file.read_bytes()


def test_a_server_goes_by_the_name_it_is_given(story: Command, someone: Someone) -> None:
    reader = someone("reader")
    root = story.json("publish", "story", "--to", public_key(reader))["root"]
    with served(story.home, "--require-proof", "--public-url", "https://kv.example:443/") as (said, _):
        error = reader.error(6, "fetch", root, "--from", said["url"])
    assert (error["kind"], error["reason"]) == ("proof-rejected", "audience")
    assert "'https://kv.example'" in error["message"]
    with served(story.home, "--require-proof") as (said, _):
        port = said["url"].rpartition(":")[2]
        error = reader.error(6, "fetch", root, "--from", f"http://localhost:{port}")
        assert said["url"] in error["message"]
        assert "--from" in error["hint"]
        assert reader.json("fetch", root, "--from", said["url"])["sealed"]["epoch"] == 1


def test_a_sealed_file_is_kept_back_as_well(story: Command, someone: Someone, tmp_path: Path) -> None:
    reader, car = someone("reader"), tmp_path / "sealed.car"
    root = story.json("publish", "story", "--to", public_key(reader), "--car", car)["root"]
    blocks = sealed_blocks(story.home)
    with served(tmp_path / "nowhere", "--car", car, "--require-proof") as (said, _):
        assert 200 not in {status(f"{said['url']}/ipfs/{cid}?format=raw") for cid in blocks}
        assert reader.json("fetch", root, "--from", said["url"])["sealed"]["epoch"] == 1


def test_addresses_are_listed_with_what_stands_behind_them(story: Command, someone: Someone, tmp_path: Path) -> None:
    car = tmp_path / "sealed.car"
    sealed = story.json("publish", "story", "--to", public_key(someone("reader")))["root"]
    story("publish", "story", "--to", "readers", "--car", car)
    receipt = story.json("publish", "story", "--public", "--sign", "--yes")["receipt"]
    root = story.json("show", "story")["cid"]
    with served(story.home, "--car", car) as (said, lines):
        url = said["url"]
    assert f"  {url}/ipfs/{root}  story (signed)" in lines
    assert lines.count(f"  {url}/ipfs/{sealed}  sealed") == 2  # of the home and of the file
    assert not [line for line in lines if receipt in line]


def test_the_same_over_https(story: Command, someone: Someone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    reader = someone("reader")
    root = story.json("publish", "story", "--to", public_key(reader))["root"]
    with served(story.home, "--require-proof", "--tls-cert", cert, "--tls-key", key) as (said, _):
        assert said["url"].startswith("https://")
        assert reader.json("fetch", root, "--from", said["url"])["sealed"]["epoch"] == 1
        error = someone("plain").error(7, "fetch", root, "--from", said["url"].replace("https", "http"))
        assert error["kind"].startswith("peer")


def test_a_ring_is_published_where_it_is_asked_for(story: Command, someone: Someone) -> None:
    readers = [someone(name) for name in ("first", "second", "third")]
    keys = [public_key(each) for each in readers]
    error = story.error(5, "publish", "story", "--to", keys[0], "--ring")
    assert error["keys"] == 2
    assert "4" in error["hint"]
    assert story.json("stats")["published"] == 0
    plain = story.json("publish", "story", *(word for key in keys for word in ("--to", key)))
    assert plain["ring"] is None
    sealed = story.json("publish", "story", "--to", "readers", "--ring")
    assert Cid.parse(sealed["ring"]).codec == "dag-cbor"
    with served(story.home, "--require-proof") as (said, _):
        got = readers[1].json("fetch", sealed["root"], "--from", said["url"], "--proof", "ring")
        assert got["sealed"]["epoch"] == 1
        error = readers[0].error(6, "fetch", plain["root"], "--from", said["url"], "--proof", "ring")
        assert (error["kind"], error["reason"]) == ("proof-rejected", "no-ring")

    fourth = someone("fourth")
    added = story.json("grant", "add", "story", public_key(fourth))
    assert ring_of(story, added["root"]) not in (None, sealed["ring"])
    left = story.json("grant", "revoke", "story", keys[0], "--reencrypt")
    assert ring_of(story, left["root"]) is not None
    left = story.json("grant", "revoke", "story", keys[1], "--reencrypt")
    assert ring_of(story, left["root"]) is None  # too few to hide among


def ring_of(command: Command, root: str) -> str | None:
    with DiskStore(command.home / "store", read_only=True) as store:
        ring = Grant.decode(store.get(Sealed.decode(store.get(Cid.parse(root))).grant)).ring
    return None if ring is None else str(ring)


def test_options_that_make_no_sense(story: Command, someone: Someone) -> None:
    assert story.error(2, "serve", "--public-url", "http://a")["kind"] == "usage"
    assert story.error(2, "serve", "--require-proof", "--public-url", "ftp://a")["kind"] == "bad-reference"
    assert story.error(2, "publish", "story", "--public", "--ring")["kind"] == "usage"
    link = story.json("publish", "story", "--link")["link"]
    with served(story.home, "--require-proof") as (said, _):
        error = someone("friend").error(2, "fetch", link, "--from", said["url"], "--proof", "ring")
    assert "ring" in error["message"]
