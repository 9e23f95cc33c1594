"""What a node says it has pinned, and how `pin list --kubo` shows it beside this home's own pins."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import AccessDenied, PeerMisbehaved
from cyberkv.cybergraph.foreign import parse_cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.peers.kubo import KuboPin, KuboRpc, RpcAddress, named_pins
from cyberkv.cybergraph.peers.kubo import pins as kubo_pins
from cyberkv.cybergraph.store import DiskStore
from tests.cli.conftest import Command
from tests.wire.kubo_node import KuboNode, NodeServer, failed
from tests.wire.synthetic import record

V0 = parse_cid("QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWKtJDd")
OURS, THEIRS = (Cid.of(name, "dag-cbor", "blake3") for name in (b"ours", b"theirs"))
UNNAMED, OTHER = (Cid.of(name, "raw", "sha2-256") for name in (b"without a name", b"of another name"))


@pytest.fixture
def server() -> Iterator[NodeServer]:
    running = NodeServer(KuboNode())
    yield running
    running.close()


@pytest.fixture
def node(server: NodeServer) -> KuboNode:
    return server.node


Pins = Callable[[], list[KuboPin]]


@pytest.fixture
def pins(server: NodeServer) -> Pins:
    def pins() -> list[KuboPin]:
        with closing(KuboRpc(RpcAddress.parse(server.url))) as rpc:
            return named_pins(rpc)

    return pins


def listed(*pins: tuple[object, object]) -> Callable[..., tuple[int, bytes]]:
    lines = [json.dumps({"Cid": str(cid), "Type": "recursive", "Name": name}) for cid, name in pins]
    return lambda *_: (200, "".join(f"{line}\n" for line in lines).encode())


def test_pins_are_told_by_their_names(node: KuboNode, pins: Pins) -> None:
    assert pins() == []
    node.pins = {THEIRS: "cyberkv/talk", OURS: "cyberkv/art", UNNAMED: "", OTHER: "backup of cyberkv/talk"}
    assert pins() == [KuboPin(OURS, "cyberkv/art"), KuboPin(THEIRS, "cyberkv/talk")]
    assert node.calls[-1] == ("pin/ls", "")


def test_what_others_pinned_under_such_a_name_is_listed_whatever_its_form(node: KuboNode, pins: Pins) -> None:
    node.before = listed((V0, "cyberkv/files"), (OURS, 7), (OURS, None))
    assert pins() == [KuboPin(V0, "cyberkv/files")]


def test_a_node_that_lists_nonsense_or_without_end_is_named(
    node: KuboNode, pins: Pins, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.before = listed((OURS, "cyberkv/a"), ("no CID", "cyberkv/b"))
    with pytest.raises(PeerMisbehaved, match="no CID"):
        pins()
    node.before = listed(*[(OURS, "cyberkv/a")] * 5000)
    assert len(pins()) == 5000
    monkeypatch.setattr(kubo_pins, "MOST_PINS", 4999)
    with pytest.raises(PeerMisbehaved, match="over 4999 pins"):
        pins()
    node.before = lambda *_: failed("forbidden", 403)
    with pytest.raises(AccessDenied):
        pins()


def test_the_command_lists_the_pins_of_a_node_beside_its_own(
    server: NodeServer, node: KuboNode, tmp_path: Path
) -> None:
    with DiskStore(tmp_path / "store") as store, Index(tmp_path / "index") as index:
        root = record(store, blocks=2)
        index.set_head("talk", root, "2025-01-01T00:00:00Z")
    home = Command(tmp_path)
    home("pin", "add", "talk")
    node.pins = {root: "cyberkv/talk", THEIRS: "cyberkv/\x1b[31mred"}
    told = home.json("pin", "list", "--kubo", server.url)
    assert [each["cid"] for each in told["pins"]] == [str(root)]
    assert told["kubo"]["node"] == f"kubo:{server.url}"
    assert told["kubo"]["pins"] == [
        {"cid": str(THEIRS), "name": "cyberkv/\x1b[31mred"}, {"cid": str(root), "name": "cyberkv/talk"},
    ]  # fmt: skip
    shown = home("pin", "list", "--kubo", server.url).stdout
    assert f"{root}  on kubo:{server.url}  cyberkv/talk\n" in shown
    assert shown.count("\n") == 3
    assert "\x1b" not in shown
    assert [each["cid"] for each in home.json("pin", "list", "talk", "--kubo", server.url)["kubo"]["pins"]] == [
        str(root)
    ]
    assert home.json("pin", "list", THEIRS, "--kubo", server.url)["pins"] == []
    calls = len(node.calls)
    assert "kubo" not in home.json("pin", "list")  # without the option no node is asked
    assert len(node.calls) == calls
    assert home.error(7, "pin", "list", "--kubo", "http://127.0.0.1:1")["kind"] == "peer-unreachable"
