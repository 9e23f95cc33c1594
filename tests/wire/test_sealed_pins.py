"""What nodes have pinned of a sealed conversation, once all of it was sealed again under another key."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import DiskStore
from tests.cli.conftest import Command
from tests.wire.kubo_node import KuboNode, NodeServer, failed
from tests.wire.synthetic import record

Pinned = tuple[Command, NodeServer, Cid]


@pytest.fixture
def home(tmp_path: Path) -> Command:
    (tmp_path / "home").mkdir(mode=0o700)
    with DiskStore(tmp_path / "home" / "store") as store, Index(tmp_path / "home" / "index") as index:
        index.set_head("talk", record(store), "2026-01-01T00:00:00Z")
    return Command(tmp_path / "home")


@pytest.fixture
def pinned(home: Command, tmp_path: Path) -> Iterator[Pinned]:
    """A home, a node on which it has pinned a sealed conversation for a reader, and that conversation's root."""
    server = NodeServer(KuboNode())
    key = Command(tmp_path / "reader").json("key", "new")["public"]
    done = home.json("publish", "talk", "--to", key, "--kubo", server.url)
    yield home, server, Cid.parse(done["root"])
    server.close()


def test_the_new_epoch_takes_the_place_of_the_old(pinned: Pinned) -> None:
    home, server, old = pinned
    assert list(server.node.pins) == [old]
    result = home("--json", "grant", "rotate", "talk", "--reencrypt")
    new = Cid.parse(result.json["root"])
    assert server.node.pins == {new: f"cyberkv/{new}"}
    assert result.json["kubo"] == [{"node": server.url, "unpinned": [str(old)], "failed": None, "commands": []}]
    server.node.collect()
    assert old not in server.node.blocks
    calls = [call for call in server.node.calls if call[0] in ("pin/add", "pin/rm") and call[1] in map(str, (old, new))]
    assert calls[-2:] == [("pin/add", str(new)), ("pin/rm", str(old))], "the old goes once the new is there"
    before = len(server.node.calls)
    home.json("grant", "rotate", "talk")  # control: without sealing again, a node is not even asked
    assert len(server.node.calls) == before


def test_every_address_of_earlier_epochs_goes(pinned: Pinned, tmp_path: Path) -> None:
    home, server, old = pinned
    key = Command(tmp_path / "second").json("key", "new")["public"]
    more = Cid.parse(home.json("publish", "talk", "--to", key, "--kubo", server.url)["root"])
    home("grant", "rotate", "talk")
    second = Cid.parse(home.json("publish", "talk", "--to", "readers", "--kubo", server.url)["root"])
    assert {*server.node.pins} == {old, more, second}  # control: what was published one by one stays
    done = home.json("grant", "rotate", "talk", "--reencrypt")
    assert [*server.node.pins] == [Cid.parse(done["root"])]
    assert {*done["kubo"][0]["unpinned"]} == {*map(str, (old, more, second))}


@pytest.mark.parametrize("where", ["before", "meanwhile"])
def test_a_node_that_does_not_do_it_is_told_of_with_what_to_type(pinned: Pinned, where: str) -> None:
    home, server, old = pinned
    if where == "before":
        server.node.before = lambda *_: (403, b"forbidden")
    else:
        server.node.before = lambda *call: failed("the disk is on fire") if call == ("pin/rm", str(old)) else None
    result = home("--json", "grant", "rotate", "talk", "--reencrypt")
    [told] = result.json["kubo"]
    host, port = server.server_address[:2]
    commands = [
        f"cyberkv publish talk --to readers --kubo {server.url}", f"ipfs --api=/ip4/{host}/tcp/{port} pin rm {old}",
    ]  # fmt: skip
    assert (told["node"], told["unpinned"], told["commands"]) == (server.url, [], commands)
    assert told["failed"]
    assert all(command in result.stderr for command in commands)
    assert old in server.node.pins
    server.node.before = lambda *_: None  # the same again, once the node is back, takes the old away as well
    again = home.json("grant", "rotate", "talk", "--reencrypt")
    assert str(old) in again["kubo"][0]["unpinned"]
    assert [*server.node.pins] == [Cid.parse(again["root"])]


def test_a_node_that_is_gone(pinned: Pinned) -> None:
    home, server, old = pinned
    server.close()
    result = home("--json", "grant", "rotate", "talk", "--reencrypt")
    assert (result.json["epoch"], result.json["published"]) == (2, True)
    assert f"pin rm {old}" in result.stderr
    assert result.json["kubo"][0]["failed"]


def test_somebody_else_unpinned_it_before(pinned: Pinned) -> None:
    home, server, old = pinned
    del server.node.pins[old]
    done = home.json("grant", "rotate", "talk", "--reencrypt")
    assert [*server.node.pins] == [Cid.parse(done["root"])]
    assert done["kubo"][0]["failed"] is None


def test_what_was_sealed_into_a_file_leaves_the_pins_to_the_user(pinned: Pinned, tmp_path: Path) -> None:
    home, server, old = pinned
    done = home.json("grant", "rotate", "talk", "--reencrypt", "--car", tmp_path / "new.car")
    assert "file alone" in done["kubo"][0]["failed"]
    assert [*server.node.pins] == [old]
