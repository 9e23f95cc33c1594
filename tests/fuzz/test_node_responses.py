"""Answers of Kubo nodes and of routers that were right once: JSON, lines of JSON, blocks, streams."""

import json
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings

from cyberkv.cybergraph.errors import CyberKVError
from cyberkv.cybergraph.peers.kubo import KuboPeer, KuboRpc, RpcAddress
from cyberkv.cybergraph.peers.routing import Router
from cyberkv.cybergraph.peers.url import GatewayUrl
from tests.fuzz.edits import spoilt
from tests.fuzz.test_responses import BLOCKS, BRIEF, LEAF, ROOT
from tests.wire.liar import Exchange, Liar, lying


@pytest.fixture(scope="module")
def liar() -> Iterator[Liar]:
    with lying(BLOCKS) as running:
        yield running


def block(url: str) -> object:
    with KuboPeer(url, patience=BRIEF) as peer:
        got = dict(peer.get_many([LEAF]))
        assert got == {LEAF: BLOCKS[LEAF]}
        return got


def graph(url: str) -> object:
    with KuboPeer(url, patience=BRIEF) as peer:
        got = dict(peer.get_dag(ROOT))
        assert all(BLOCKS[cid] == data for cid, data in got.items())
        return got


def pins(url: str) -> object:
    rpc = KuboRpc(RpcAddress.parse(url), patience=BRIEF)
    try:
        return list(rpc.lines("pin/ls"))
    finally:
        rpc.close()


def gateways(url: str) -> object:
    found = Router(url, patience=BRIEF).gateways(ROOT)
    for each in found:
        GatewayUrl.parse(each)
    return found


RECORD = {
    "Schema": "peer",
    "ID": "12D3",
    "Addrs": ["/ip4/192.0.2.1/tcp/80/http", "/dns/a.example/https"],
    "Protocols": [],
}
ERROR = {"Message": "blockstore: block not found", "Code": 0, "Type": "error"}
ASKED: dict[str, tuple[Callable[[str], object], str, tuple[bytes, ...]]] = {
    "block": (block, "application/octet-stream", (BLOCKS[LEAF],)),
    "graph": (graph, "application/octet-stream", ()),
    "pins": (pins, "application/json", (b'{"Cid":"bafy","Type":"recursive","Name":"a"}\n{"Cid":"bafz"}\n',)),
    "lines of records": (gateways, "application/x-ndjson", (json.dumps(RECORD).encode() + b"\n",)),
    "records": (gateways, "application/json", (json.dumps({"Providers": [RECORD]}).encode(),)),
}


@pytest.mark.parametrize("name", ASKED)
def test_spoilt_answers_are_taken_or_refused_by_type(liar: Liar, name: str) -> None:
    ask, content_type, bodies = ASKED[name]
    bodies = bodies or (liar.car(ROOT),)
    seeds = [
        b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (status, kind, len(body), body)
        for body in bodies
        for status, kind, body in (
            (b"200 OK", content_type.encode(), body),
            (b"500 Internal Server Error", b"application/json", json.dumps(ERROR).encode()),
        )
    ]
    outcomes: set[str] = set()

    @settings(max_examples=100)
    @given(spoilt([seeds[0], *seeds]))
    def check(data: bytes) -> None:
        def behave(talk: Exchange) -> None:
            talk.send(data)
            talk.connection.shutdown(1)

        liar.behave = behave
        try:
            ask(liar.url)
        except CyberKVError as error:
            outcomes.add(error.kind)
        else:
            outcomes.add("taken")

    check()
    assert "taken" in outcomes
    assert len(outcomes) > 1
