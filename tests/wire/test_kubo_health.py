"""What a node is set up to announce, and what is advised: of any version, as far as it answers."""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing

import pytest

from cyberkv.cybergraph.errors import PeerError
from cyberkv.cybergraph.peers.kubo import KuboHealth, KuboRpc, RpcAddress, kubo_health
from tests.wire.kubo_node import Answer, KuboNode, NodeServer, failed


@pytest.fixture
def node() -> Iterator[NodeServer]:
    server = NodeServer(KuboNode())
    yield server
    server.close()


def health(node: NodeServer, settings: Mapping[str, object], version: object = "0.43.1", denied: int = 0) -> KuboHealth:
    def answer(command: str, key: str) -> Answer:
        if command == "version":
            return 200, json.dumps({"Version": version} if version else [1]).encode()
        if denied:
            return failed("forbidden", denied)
        if key not in settings:
            return failed(f"failed to get config value: {key!r} is not set")
        return 200, json.dumps({"Key": key, "Value": settings[key]}).encode()

    node.node.before = answer
    with closing(KuboRpc(RpcAddress.parse(node.url))) as rpc:
        return kubo_health(rpc)


@pytest.mark.parametrize(
    ("settings", "strategy", "advice"),
    [
        ({}, "all", "every block"),
        ({"Provide.Strategy": None}, "all", "every block"),
        ({"Provide.Strategy": "pinned+mfs"}, "pinned+mfs", "every block"),
        ({"Provide.Strategy": "all", "Provide.Enabled": True}, "all", "every block"),
        ({"Provide.Strategy": "mfs"}, "mfs", "does not announce again"),
        ({"Provide.Strategy": "roots", "Provide.Enabled": True}, "roots", None),
        ({"Provide.Strategy": "all", "Provide.Enabled": False}, "nothing", None),
        ({"Provide.Enabled": False}, "nothing", None),
    ],
)
def test_advice_follows_what_is_announced(
    node: NodeServer, settings: Mapping[str, object], strategy: str, advice: str | None
) -> None:
    found = health(node, settings)
    assert (found.strategy, found.advice is None) == (strategy, advice is None)
    assert (advice or "") in (found.advice or "")
    if advice:
        assert "ipfs config Provide.Strategy roots" in str(found.advice)


@pytest.mark.parametrize("version", ["0.4.22", "99.0.0-rc1", "", 7, "no version at all"])
def test_no_version_is_refused(node: NodeServer, version: object) -> None:
    found = health(node, {"Provide.Strategy": "roots"}, version)
    assert (found.version, found.strategy) == (str(version or "unknown"), "roots")


def test_a_node_that_does_not_tell_its_settings_gets_no_advice(node: NodeServer) -> None:
    assert health(node, {}, denied=403) == KuboHealth(node.url, "0.43.1", None, None)


def test_a_node_that_is_not_there(node: NodeServer) -> None:
    with closing(KuboRpc(RpcAddress.parse("http://127.0.0.1:9"))) as rpc, pytest.raises(PeerError):
        kubo_health(rpc)
