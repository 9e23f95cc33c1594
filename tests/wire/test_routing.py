"""Asking a router over real sockets: what it names is tried, and what it lies about costs little."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import BadReference, PeerError, PeerMisbehaved, PeerUnreachable
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.peers import HttpPeer, Reach
from cyberkv.cybergraph.peers.routed import MOST_ROUTED, find_gateways
from cyberkv.cybergraph.peers.routing import MOST_ANSWER_BYTES, MOST_GATEWAYS, MOST_RECORDS, PATIENCE, Router
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.transfer import fetch
from tests.wire.conftest import CALM
from tests.wire.liar import RAW, Exchange, Liar, lying
from tests.wire.router import JSON, LINES, Asked, gateway_record, in_json, in_lines, routing
from tests.wire.synthetic import contents, conversation

CID = Cid.of(b"wanted", "raw", "blake3")
HERE = Reach.to(("127.0.0.1",), anywhere=False)
QUICK = replace(PATIENCE, read_s=0.6, block_s=1.0)
BITSWAP = {"Schema": "bitswap", "Protocol": "transport-bitswap", "ID": "12D3KooW", "Addrs": ["/ip4/192.0.2.1/tcp/4001"]}
UNKNOWN = {"Schema": "moon", "Addrs": {"far": "away"}}


def gateways(behave: Callable[[Asked], None]) -> list[str]:
    with routing(behave) as server:
        return Router(server.url, patience=QUICK).gateways(CID)


@pytest.mark.parametrize("form", [in_lines, in_json])
def test_gateways_are_picked_out_of_what_is_there(form: Callable[..., Callable[[Asked], None]]) -> None:
    records = [
        BITSWAP,
        UNKNOWN,
        gateway_record("http://192.0.2.1:80"),
        {"Schema": "bitswap", "ID": "x", "Addrs": ["/ip4/192.0.2.2/udp/1/quic-v1", "/dns/old.example/tcp/443/https"]},
        {"Schema": "peer", "ID": "x", "Addrs": None},
        {"Schema": "peer", "ID": "x", "Addrs": [7, None, "", "/", "//", "/ip4", "/http", "/dns/a/tcp/http"]},
        7, None, [], "text",
        gateway_record("http://a:1", Addrs=["/dns4/new.example/tcp/8443/tls/http", "/ip4/192.0.2.1/tcp/80/http"]),
    ]  # fmt: skip
    assert gateways(form(records)) == ["http://192.0.2.1", "https://old.example", "https://new.example:8443"]


def test_the_question_says_what_is_wanted() -> None:
    with routing(in_json([])) as server:
        for url in (server.url, f"{server.url}/", f"{server.url}/routing/v1", f"{server.url}/routing/v1/"):
            assert Router(url, patience=QUICK).gateways(CID) == []
    asked = f"/routing/v1/providers/{CID}?filter-protocols=unknown,transport-ipfs-gateway-http"
    assert server.targets == [asked] * 4
    assert server.accepted == [f"{LINES}, {JSON}"] * 4


def test_a_router_that_knows_nobody() -> None:
    assert gateways(lambda asked: asked.send(404, "text/plain", b"nobody")) == []
    assert gateways(lambda asked: asked.send(200, JSON, b'{"Providers": null}')) == []
    assert gateways(lambda asked: asked.send(200, JSON, b"{}")) == []
    assert gateways(lambda asked: asked.send(200, LINES, b"\n\n")) == []


def silent(asked: Asked) -> None:
    asked.server.ended.wait(30)


def endless(asked: Asked) -> None:
    asked.begin(JSON)
    while not asked.server.ended.is_set():
        asked.wfile.write(b'{"Providers": [' + b"[" * 65536)


def drip(asked: Asked) -> None:
    asked.begin(LINES)
    while not asked.server.ended.wait(0.05):
        asked.wfile.write(b" ")


@pytest.mark.parametrize(
    ("behave", "error"),
    [
        (lambda asked: asked.send(500, "text/plain", b"oops"), PeerUnreachable),
        (lambda asked: asked.send(429, "text/plain", b"later"), PeerUnreachable),
        (lambda asked: asked.send(422, "text/plain", b"no"), PeerMisbehaved),
        (lambda asked: asked.send(302, "text/plain", b""), PeerMisbehaved),
        (lambda asked: asked.send(200, "text/html", b"<html>"), PeerMisbehaved),
        (lambda asked: asked.send(200, JSON, b"[1"), PeerMisbehaved),
        (lambda asked: asked.send(200, JSON, b"[" * 100_000), PeerMisbehaved),
        (lambda asked: asked.send(200, JSON, b'{"Providers": 7}'), PeerMisbehaved),
        (lambda asked: asked.send(200, JSON, b"[]" + b" " * 2 * MOST_ANSWER_BYTES), PeerMisbehaved),
        (lambda asked: asked.send(200, LINES, b"no json\n"), PeerMisbehaved),
        (endless, PeerMisbehaved),
        (silent, PeerUnreachable),
        (drip, PeerUnreachable),
    ],
)
def test_a_bad_router_has_its_error(behave: Callable[[Asked], None], error: type[PeerError]) -> None:
    with pytest.raises(error):
        gateways(behave)


def test_what_came_before_the_answer_broke_counts() -> None:
    first = json.dumps(gateway_record("http://192.0.2.1:80")).encode() + b"\n"

    def broken(asked: Asked) -> None:
        asked.send(200, LINES, first + b"no json\n")

    def stalling(asked: Asked) -> None:
        asked.begin(LINES)
        asked.wfile.write(first)
        silent(asked)

    def dripping(asked: Asked) -> None:
        asked.begin(LINES)
        asked.wfile.write(first)
        while not asked.server.ended.wait(0.05):
            asked.wfile.write(b"\n")

    for behave in (broken, stalling, dripping):
        assert gateways(behave) == ["http://192.0.2.1"]


def test_a_million_records_are_not_read() -> None:
    sent = [0]

    def flood(record: Callable[[int], object]) -> Callable[[Asked], None]:
        def behave(asked: Asked) -> None:
            asked.begin(LINES)
            for at in range(1_000_000):
                asked.wfile.write(json.dumps(record(at)).encode() + b"\n")
                sent[0] = at
                if asked.server.ended.is_set():
                    return

        return behave

    many = gateways(flood(lambda at: gateway_record(f"http://192.0.2.{at % 256}:{1 + at % 9999}")))
    assert len(many) == MOST_GATEWAYS
    assert gateways(flood(lambda _: UNKNOWN)) == []
    assert MOST_RECORDS <= sent[0] < 200_000, "what the kernel buffers may have been sent, and no more"
    one = [{"Schema": "peer", "Addrs": [f"/ip4/192.0.2.1/tcp/{port}/http" for port in range(1, 9999)]}]
    assert len(gateways(in_json(one))) == MOST_GATEWAYS


@pytest.mark.parametrize("url", ["ftp://a", "http://user:hunter2@a", "http://a/other", "a", "", "http://a/routing/v2"])
def test_what_is_no_router(url: str) -> None:
    with pytest.raises(BadReference) as caught:
        Router(url)
    assert "hunter2" not in str(caught.value)


# Gateways that routers name.


def probed(talk: Exchange) -> None:
    """Answers the probe and is honest otherwise."""
    if "bafkqaaa" in talk.target:
        talk.answer(b"", RAW)
    else:
        talk.honest()


@pytest.fixture
def serve() -> Iterator[Callable[..., Liar]]:
    with ExitStack() as stack:
        yield lambda blocks, behave=probed: stack.enter_context(lying(blocks, behave))


@pytest.fixture
def route() -> Iterator[Callable[..., Router]]:
    with ExitStack() as stack:
        yield lambda *records: Router(stack.enter_context(routing(in_lines(records))).url, patience=QUICK)


def test_named_gateways_are_tried_and_the_quickest_comes_first(
    serve: Callable[..., Liar], route: Callable[..., Router]
) -> None:
    def late(talk: Exchange) -> None:
        talk.server.ended.wait(0.3)
        probed(talk)

    slow, quick = serve({}, late), serve({})
    old = serve({}, lambda talk: talk.head("404 Not Found", content_length=0))
    page = serve({}, lambda talk: talk.answer(b"<html>", "text/html"))
    dead = serve({})
    dead.shutdown()
    dead.server_close()
    one = route(*(gateway_record(each.url) for each in (old, slow, dead)))
    two = route(*(gateway_record(each.url) for each in (slow, page, quick)))
    found = find_gateways(CID, [one, two], HERE)
    assert [(each.url, each.router) for each in found.gateways] == [
        (quick.url, two.name), (slow.url, one.name), (old.url, one.name), (page.url, two.name),
    ]  # fmt: skip
    assert [each.latency_s is None for each in found.gateways] == [False, False, True, True]
    assert [url for url, _ in found.passed_over] == [dead.url]
    assert one.name in found.passed_over[0][1]


def test_private_addresses_are_passed_over_unless_they_were_allowed(
    serve: Callable[..., Liar], route: Callable[..., Router]
) -> None:
    server = serve({})
    by_name = server.url.replace("127.0.0.1", "localhost")
    router = route(gateway_record(server.url), gateway_record(by_name))
    found = find_gateways(CID, [router], Reach(anywhere=False))
    assert found.gateways == []
    assert [url for url, _ in found.passed_over] == [server.url, by_name]
    assert all("no public address" in reason for _, reason in found.passed_over)
    assert server.targets == [], "it was connected to"
    found = find_gateways(CID, [router], Reach.to(("localhost",), anywhere=False))
    assert [each.url for each in found.gateways] == [by_name]


def test_a_router_that_fails_does_not_spoil_another(serve: Callable[..., Liar], route: Callable[..., Router]) -> None:
    server = serve({})
    with routing(lambda asked: asked.send(500, "text/plain", b"")) as broken:
        failing = Router(broken.url, patience=QUICK)
        found = find_gateways(CID, [failing, route(gateway_record(server.url))], HERE)
    assert [each.url for each in found.gateways] == [server.url]
    assert [name for name, _ in found.passed_over] == [failing.name]


def test_only_the_quickest_few_are_used(serve: Callable[..., Liar], route: Callable[..., Router]) -> None:
    servers = [serve({}) for _ in range(MOST_ROUTED + 2)]
    found = find_gateways(CID, [route(*(gateway_record(each.url) for each in servers))], HERE)
    assert len(found.gateways) == MOST_ROUTED
    latencies = [each.latency_s for each in found.gateways]
    assert latencies == sorted(latencies, key=float)  # type: ignore[arg-type]


def test_a_fetch_from_routed_gateways_survives_liars(
    index: Index, serve: Callable[..., Liar], route: Callable[..., Router]
) -> None:
    origin, root = conversation(blocks=40)
    blocks = contents(origin, root)

    def flips(talk: Exchange) -> None:
        if "bafkqaaa" in talk.target:
            probed(talk)
        else:
            talk.answer(talk.body()[:-1] + b"?")

    liar, empty, honest = serve(blocks, flips), serve({}), serve(blocks)
    router = route(*(gateway_record(each.url) for each in (liar, empty, honest)))
    found = find_gateways(root, [router], HERE)
    store = MemoryStore()
    with ExitStack() as stack:
        peers = [stack.enter_context(HttpPeer(each.url, patience=CALM, reach=HERE)) for each in found.gateways]
        report = fetch(store, index, root, peers)
    assert contents(store, root) == blocks
    assert {refusal.peer for refusal in report.refused} <= {liar.url}
    assert {source.peer for source in report.sources if source.blocks} == {honest.url}
