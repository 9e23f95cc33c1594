"""What was published for some as a file alone: nothing of it is here, and access is given and ended all the same."""

import signal
from pathlib import Path

import pytest

from cyberkv.cybergraph.car import read_car
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.nodes import Sealed
from cyberkv.cybergraph.store import DiskStore
from tests.cli.conftest import Command, public_key
from tests.forked import Forked


def cids(command: Command) -> set[Cid]:
    with DiskStore(command.home / "store", read_only=True) as store:
        return set(store.cids())


def blocks(car: Path) -> dict[Cid, bytes]:
    with car.open("rb") as file:
        return dict(read_car(file))


def published(command: Command) -> list[Cid]:
    with Index(command.home / "index") as index:
        return index.published()


def test_nothing_of_it_is_stored_or_served(story: Command, first: Command, car: Path) -> None:
    before = cids(story)
    done = story.json("publish", "story", "--to", public_key(first), "--car", car)
    assert cids(story) == before
    assert published(story) == []
    written = blocks(car)
    assert (len(written), sum(map(len, written.values()))) == (done["blocks"], done["bytes"])
    assert first.json("fetch", done["root"], "--from", car)["root"] == story.json("show", "story")["cid"]
    served = story.json("publish", "story", "--to", "readers")  # the control: without a file it is stored and served
    assert served["root"] == done["root"]
    assert cids(story) - before == set(written)
    assert published(story) == [Cid.parse(done["root"])]


def test_a_reader_is_added_by_a_second_small_file(story: Command, first: Command, second: Command, car: Path) -> None:
    small, before = car.with_name("small.car"), cids(story)
    old = story.json("publish", "story", "--to", public_key(first), "--car", car)["root"]
    added = story.json("grant", "add", "story", public_key(second), "--car", small)
    assert (added["published"], added["urls"]) == (True, [small.as_uri()])
    assert cids(story) == before
    assert len(blocks(small)) == 2
    assert second.json("fetch", added["root"], "--from", small, "--from", car)["sealed"]["epoch"] == 1
    second.error(6, "fetch", old, "--from", car)
    assert story.error(5, "grant", "add", "story", public_key(Command(car.with_name("third"))), "--car", car)["path"]
    whole = story.json("publish", "story", "--to", "readers", "--car", car)  # all of it, in place of the earlier file
    assert (whole["root"], whole["unchanged"]) == (added["root"], False)
    assert second.json("fetch", whole["root"], "--from", car)["blocks_had"] > 0


def test_without_a_file_a_reader_is_listed_and_it_is_said_how_to_go_on(
    story: Command, first: Command, second: Command, car: Path
) -> None:
    root = story.json("publish", "story", "--to", public_key(first), "--car", car)["root"]
    result = story("--json", "grant", "add", "story", public_key(second))
    assert (result.json["published"], len(result.json["readers"])) == (False, 2)
    assert "--to readers --car FILE" in result.stderr
    again = story.json("publish", "story", "--to", "readers", "--car", car)
    assert again["root"] != root
    assert second.json("fetch", again["root"], "--from", car)["sealed"]["epoch"] == 1
    story("grant", "rotate", "story")  # an epoch that is not published has no address to write
    late = story.json("grant", "add", "story", public_key(Command(car.with_name("third"))), "--car", car.with_name("x"))
    assert (late["published"], late["urls"], car.with_name("x").exists()) == (False, [], False)


@pytest.mark.parametrize("line", [("revoke", "story", "second"), ("rotate", "story")])
def test_it_is_sealed_again_into_a_new_file(
    story: Command, first: Command, second: Command, car: Path, line: tuple[str, ...]
) -> None:
    new, before = car.with_name("new.car"), cids(story)
    story.json("publish", "story", "--to", public_key(first), "--car", car)
    story.json("grant", "add", "story", public_key(second), "--label", "second")
    assert "--car" in story.error(2, "grant", *line, "--reencrypt")["hint"]
    assert story.json("grant", "list", "story")["grants"][0]["epoch"] == 1, "nothing has begun"
    story.error(2, "grant", *line, "--car", new)
    done = story.json("grant", *line, "--reencrypt", "--car", new)
    assert (done["epoch"], done["published"], cids(story)) == (2, True, before)
    assert not blocks(new).keys() & blocks(car).keys()
    assert first.json("fetch", done["root"], "--from", new)["sealed"]["epoch"] == 2
    if line[0] == "revoke":
        second.error(6, "fetch", done["root"], "--from", new)
    else:
        assert second.json("fetch", done["root"], "--from", new)["sealed"]["epoch"] == 2


def test_what_was_served_becomes_a_file(story: Command, first: Command, car: Path) -> None:
    story.json("publish", "story", "--to", public_key(first))
    assert len(published(story)) == 1
    done = story.json("grant", "rotate", "story", "--reencrypt", "--car", car)
    assert published(story) == []
    assert first.json("fetch", done["root"], "--from", car)["sealed"]["epoch"] == 2


def test_the_same_again_is_the_same_and_nothing_is_written(story: Command, first: Command, car: Path) -> None:
    key = public_key(first)
    done = story.json("publish", "story", "--to", key, "--car", car)
    before = (car.stat().st_ino, car.stat().st_mtime_ns)
    result = story("--json", "publish", "story", "--to", key, "--car", car)
    assert (result.json["root"], result.json["unchanged"]) == (done["root"], True)
    assert (result.json["blocks"], result.json["bytes"]) == (done["blocks"], done["bytes"])
    assert "Nothing of it has changed" in result.stderr
    assert (car.stat().st_ino, car.stat().st_mtime_ns) == before
    data = car.read_bytes()
    car.write_bytes(data[:-1])  # what is not whole is written again, to the same bytes
    again = story.json("publish", "story", "--to", "readers", "--car", car)
    assert (again["root"], again["unchanged"], car.read_bytes() == data) == (done["root"], False, True)
    story("grant", "rotate", "story")
    new = story.json("publish", "story", "--to", "readers", "--car", car)  # control: a new epoch is due
    assert (new["root"] != done["root"], new["unchanged"], new["epoch"]) == (True, False, 2)


@pytest.mark.parametrize("line", [("publish", "story", "--to", "readers"), ("grant", "rotate", "story", "--reencrypt")])
def test_it_is_not_written_over_something_else(
    story: Command, first: Command, car: Path, line: tuple[str, ...]
) -> None:
    story.json("publish", "story", "--to", public_key(first), "--car", car)
    letter, other = car.with_name("letter"), car.with_name("other.car")
    letter.write_text("Dear reader")
    story("prefill", "-", "--name", "other", stdin="Another text altogether.")
    story("publish", "other", "--to", first.json("key", "show")["public"], "--car", other)
    for path in (letter, other):
        before = path.read_bytes()
        assert story.error(5, *line, "--car", path)["path"] == str(path)
        assert path.read_bytes() == before
    story("grant", "rotate", "story", "--reencrypt", "--car", car)  # control: over its own it is


@pytest.mark.parametrize(("name", "alg"), [("chacha20-poly1305", 2), ("aes-256-gcm", 1), (None, 1)])
def test_the_cipher_is_chosen_once(story: Command, first: Command, car: Path, name: str | None, alg: int) -> None:
    chosen = ("--cipher", name) if name else ()
    done = story.json("publish", "story", "--to", public_key(first), *chosen, "--car", car)

    def is_under(number: int) -> bool:
        written = blocks(car)
        root = Sealed.decode(written[Cid.parse(done["root"])])
        return root.alg == number and all(data[3] == number for cid, data in written.items() if cid.codec == "raw")

    assert is_under(alg)
    assert first.json("fetch", done["root"], "--from", car)["root"] == story.json("show", "story")["cid"]
    story("grant", "rotate", "story")
    other = "aes-256-gcm" if alg == 2 else "chacha20-poly1305"
    assert "sealed under" in story.error(2, "publish", "story", "--to", "readers", "--cipher", other)["message"]
    done = story.json("publish", "story", "--to", "readers", "--car", car)
    assert (is_under(alg), done["epoch"]) == (True, 2)
    assert first.json("fetch", done["root"], "--from", car)["sealed"]["epoch"] == 2


def test_every_cipher_has_a_name() -> None:
    from cyberkv.cli.publish import CIPHERS
    from cyberkv.cybergraph.access.aead import CIPHERS as KNOWN

    assert {*CIPHERS} == {*KNOWN}


@pytest.mark.parametrize("where", ["while it is sealed", "before it is served", "before the old is withdrawn"])
@pytest.mark.parametrize("line", [("revoke", "story", "second"), ("rotate", "story")])
def test_what_was_killed_half_way_goes_on(
    story: Command, first: Command, second: Command, car: Path, where: str, line: tuple[str, ...]
) -> None:
    old = story.json("publish", "story", "--to", public_key(first))["root"]
    story.json("grant", "add", "story", public_key(second), "--label", "second")
    process = Forked([where, "--home", story.home, "grant", *line, "--reencrypt"], module="tests.cli.killed")
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert Cid.parse(old) in published(story)
    result = story("--json", "grant", *line, "--reencrypt")
    epoch = 3 if line[0] == "rotate" and where != "while it is sealed" else 2  # an epoch that is published is not due
    assert (result.json["epoch"], result.json["published"]) == (epoch, True)
    assert published(story) == [Cid.parse(result.json["root"])]
    new = story.json("publish", "story", "--to", "readers", "--car", car)
    assert new["root"] == result.json["root"]
    assert first.json("fetch", new["root"], "--from", car)["sealed"]["epoch"] == epoch
    if line[0] == "revoke":
        assert "goes on" in result.stderr
        assert len(result.json["readers"]) == 1
        second.error(6, "fetch", new["root"], "--from", car)
        assert story.json("grant", *line)["epoch"] == epoch  # once more is no mistake
        assert "no readers" in story.error(2, "grant", "revoke", "story", "nobody")["message"]
