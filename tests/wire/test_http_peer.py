import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import (
    BlockNotFound,
    CyberKVError,
    DigestMismatch,
    LimitExceeded,
    MalformedCar,
    PeerError,
    PeerMisbehaved,
    PeerUnreachable,
    TruncatedCar,
)
from cyberkv.cybergraph.gateway import Published, build_app
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.peers import HttpPeer, Patience
from cyberkv.cybergraph.store import MemoryStore
from tests.contracts.peer import PeerContract
from tests.wire.conftest import CALM, HASTY, running
from tests.wire.liar import CAR, RAW, Exchange, Liar, lying
from tests.wire.synthetic import contents, conversation

Behave = Callable[[Exchange], None]


class TestShippedGateway(PeerContract):
    @pytest.fixture(autouse=True)
    def stack(self, tmp_path: Path) -> Iterator[None]:
        with ExitStack() as self.opened, Index(tmp_path / "index") as self.index:
            yield
            self.opened.close()

    def offer(self, blocks: Mapping[Cid, bytes], root: Cid) -> HttpPeer:
        store = MemoryStore()
        store.put_many(blocks.items(), hashed=True)
        self.index.publish(root, blocks)
        return HttpPeer(self.opened.enter_context(running(build_app(Published(store, self.index)))).url, patience=CALM)


class TestPlainServer(PeerContract):
    @pytest.fixture(autouse=True)
    def stack(self) -> Iterator[None]:
        with ExitStack() as self.opened:
            yield

    def offer(self, blocks: Mapping[Cid, bytes], root: Cid) -> HttpPeer:
        return HttpPeer(self.opened.enter_context(lying(blocks)).url, patience=CALM)


@pytest.fixture(scope="module")
def blocks() -> dict[Cid, bytes]:
    return contents(*conversation(blocks=3))


def last_leaf(blocks: Mapping[Cid, bytes]) -> Cid:
    return list(blocks)[-1]


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def stall(talk: Exchange) -> None:
    body = talk.body()
    talk.head(content_type=CAR if talk.is_car else RAW, content_length=len(body))
    talk.send(body[:-1])
    talk.hang()


def drip(talk: Exchange) -> None:
    body = talk.body()
    talk.head(content_type=CAR if talk.is_car else RAW, content_length=len(body))
    for byte in body:
        talk.send(bytes([byte]))
        if talk.server.ended.wait(0.1):
            return


def endless(talk: Exchange) -> None:
    talk.head(content_type=CAR if talk.is_car else RAW, connection="close")
    while not talk.server.ended.is_set():
        talk.send(b"\xff" * 65536)


def endless_headers(talk: Exchange) -> None:
    talk.send(b"HTTP/1.1 200 OK\r\n")
    while not talk.server.ended.is_set():
        talk.send(b"X: y\r\n" * 1000)


def endless_continue(talk: Exchange) -> None:
    while not talk.server.ended.is_set():
        talk.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


def early(talk: Exchange) -> None:
    body = talk.body()
    talk.head(content_type=CAR if talk.is_car else RAW, content_length=len(body))
    talk.send(body[: len(body) // 2])
    talk.connection.shutdown(2)


def early_chunked(talk: Exchange) -> None:
    body = talk.body()
    talk.head(content_type=CAR if talk.is_car else RAW, transfer_encoding="chunked")
    talk.send(b"%x\r\n" % len(body) + body[:-1])
    talk.connection.shutdown(2)


def gzipped(talk: Exchange) -> None:
    talk.head(content_type=CAR if talk.is_car else RAW, content_encoding="gzip", content_length=4)
    talk.send(b"\x1f\x8b\0\0")


BEHAVIOURS: dict[str, tuple[Behave, type[CyberKVError], type[CyberKVError]]] = {
    "flips a bit": (lambda talk: talk.answer(flipped(talk.body())), DigestMismatch, DigestMismatch),
    "cuts the body": (lambda talk: talk.answer(talk.body()[:-1]), DigestMismatch, TruncatedCar),
    "sends nothing": (lambda talk: talk.answer(b""), DigestMismatch, TruncatedCar),
    "sends a page": (lambda talk: talk.answer(b"<html>", "text/html"), PeerMisbehaved, PeerMisbehaved),
    "sends a page as a block": (lambda talk: talk.answer(b"<html>" * 99), DigestMismatch, MalformedCar),
    "swaps the formats": (
        lambda talk: talk.answer(talk.body(), RAW if talk.is_car else CAR), PeerMisbehaved, PeerMisbehaved
    ),
    "stalls": (stall, PeerUnreachable, PeerUnreachable),
    "never answers": (Exchange.hang, PeerUnreachable, PeerUnreachable),
    "drips": (drip, PeerUnreachable, PeerUnreachable),
    "never ends": (endless, PeerMisbehaved, LimitExceeded),
    "never ends its headers": (endless_headers, PeerMisbehaved, PeerMisbehaved),
    "continues for ever": (endless_continue, PeerError, PeerError),
    "closes early": (early, PeerUnreachable, TruncatedCar),
    "closes inside a chunk": (early_chunked, PeerUnreachable, TruncatedCar),
    "redirects": (lambda talk: talk.head("302 Found", location="/x", content_length=0), PeerMisbehaved, PeerMisbehaved),
    "compresses": (gzipped, PeerMisbehaved, PeerMisbehaved),
    "speaks another protocol": (lambda talk: talk.send(b"220 mail ready\r\n"), PeerMisbehaved, PeerMisbehaved),
    "fails": (lambda talk: talk.head("500 Oops", content_length=0), PeerUnreachable, PeerUnreachable),
    "forbids": (lambda talk: talk.head("403 No", content_length=0), PeerMisbehaved, PeerMisbehaved),
    "is busy": (lambda talk: talk.head("503 Busy", retry_after=0, content_length=0), PeerUnreachable, PeerUnreachable),
    "is busy for long": (
        lambda talk: talk.head("429 Busy", retry_after=3600, content_length=0), PeerUnreachable, PeerUnreachable
    ),
    "has nothing": (lambda talk: talk.head("404 Not Found", content_length=0), BlockNotFound, BlockNotFound),
    "lost it": (lambda talk: talk.head("410 Gone", content_length=0), BlockNotFound, BlockNotFound),
}  # fmt: skip


SLOW = ("stalls", "never answers", "drips", "continues for ever")


def patience_with(behaviour: str) -> Patience:
    return HASTY if behaviour in SLOW else CALM


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_each_bad_answer_has_its_error(blocks: dict[Cid, bytes], behaviour: str) -> None:
    behave, of_block, of_graph = BEHAVIOURS[behaviour]
    root, leaf = next(iter(blocks)), last_leaf(blocks)
    with lying(blocks, behave) as liar, HttpPeer(liar.url, patience=patience_with(behaviour)) as peer:
        got = []
        with pytest.raises(of_block):
            got.extend(peer.get_many([leaf]))
        assert got == []
        with pytest.raises(of_graph):
            got.extend(peer.get_dag(root))
        assert all(blocks[cid] == data for cid, data in got)
        assert len(got) < len(blocks)


def test_an_endless_answer_costs_no_more_than_a_block(blocks: dict[Cid, bytes]) -> None:
    with lying(blocks, endless) as liar, HttpPeer(liar.url, patience=CALM) as peer, pytest.raises(PeerMisbehaved):
        list(peer.get_many([next(iter(blocks))]))
    assert liar.sent_bytes < 32 << 20  # what the node may have, and what the kernel buffers on the way


def test_nobody_there(blocks: dict[Cid, bytes]) -> None:
    with lying(blocks) as liar:
        url = liar.url
    with HttpPeer(url, patience=CALM) as peer, pytest.raises(PeerUnreachable, match=url):
        list(peer.get_many(list(blocks)))


def test_a_busy_peer_is_asked_again(blocks: dict[Cid, bytes]) -> None:
    leaf = last_leaf(blocks)
    slept: list[float] = []

    def busy_once(talk: Exchange) -> None:
        if len(talk.server.targets) == 1:
            talk.head("429 Too Many Requests", retry_after=3, content_length=4)
            talk.send(b"wait")
        else:
            talk.honest()

    patience = replace(CALM, wait_s=4)
    with lying(blocks, busy_once) as liar, HttpPeer(liar.url, patience=patience, sleep=slept.append) as peer:
        assert list(peer.get_many([leaf])) == [(leaf, blocks[leaf])]
    assert slept == [3.0]


DATE = "Mon, 02 Mar 2026 10:00:00 GMT"


@pytest.mark.parametrize(
    ("headers", "waited_s"),
    [
        ({"retry_after": "Mon, 02 Mar 2026 10:00:03 GMT", "date": DATE}, 3.0),
        ({"retry_after": "Monday, 02-Mar-26 10:00:02 GMT", "date": DATE}, 2.0),
        ({"retry_after": "Mon, 02 Mar 2026 09:00:00 GMT", "date": DATE}, 0.0),
        ({"retry_after": "Mon, 02 Mar 2026 10:00:03 GMT"}, 1.0),
        ({"retry_after": "Mon, 99 Foo 2026 10:00:03 GMT", "date": DATE}, 1.0),
        ({"retry_after": "Mon, 02 Mar 2026 10:00:03 -0000", "date": DATE}, 1.0),
        ({"retry_after": "Mon, 02 Mar 99999999999 10:00:03 GMT", "date": DATE}, 1.0),
        ({"retry_after": "Mon, 02 Mar 2026 10:00:03 +99999999999999999999", "date": DATE}, 1.0),
        ({"retry_after": "soon", "date": DATE}, 1.0),
        ({"retry_after": "-3"}, 1.0),
        ({}, 1.0),
        ({"retry_after": "Mon, 02 Mar 2026 11:00:00 GMT", "date": DATE}, None),
        ({"retry_after": "9" * 400}, None),
    ],
)
def test_how_long_a_busy_peer_asks_to_wait(
    blocks: dict[Cid, bytes], headers: dict[str, str], waited_s: float | None
) -> None:
    leaf = last_leaf(blocks)
    slept: list[float] = []

    def busy_once(talk: Exchange) -> None:
        if len(talk.server.targets) == 1:
            talk.head("503 Busy", content_length=0, **headers)
        else:
            talk.honest()

    with (
        lying(blocks, busy_once) as liar,
        HttpPeer(liar.url, patience=replace(CALM, wait_s=4), sleep=slept.append) as peer,
    ):
        if waited_s is None:
            with pytest.raises(PeerUnreachable, match="busy"):
                list(peer.get_many([leaf]))
        else:
            assert list(peer.get_many([leaf])) == [(leaf, blocks[leaf])]
    assert slept == ([] if waited_s is None else [waited_s])


def test_a_dropped_idle_connection_is_opened_again(blocks: dict[Cid, bytes]) -> None:
    def once(talk: Exchange) -> None:
        talk.honest()
        talk.connection.shutdown(2)  # without having said `Connection: close`

    with lying(blocks, once) as liar, HttpPeer(liar.url, patience=CALM, connections=1) as peer:
        assert dict(peer.get_many(list(blocks))) == blocks


def test_connections_are_kept(blocks: dict[Cid, bytes]) -> None:
    opened = []

    class Watching(Liar):
        def get_request(self) -> tuple[object, object]:
            opened.append(1)
            return super().get_request()

    with Watching(blocks, Exchange.honest) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with HttpPeer(server.url, patience=CALM, connections=2) as peer:
                assert dict(peer.get_many(list(blocks))) == blocks
                with pytest.raises(BlockNotFound):
                    list(peer.get_many([Cid.of(b"", "raw", "blake3")]))
                assert dict(peer.get_many(list(blocks))) == blocks
        finally:
            server.shutdown()
            thread.join()
    assert 1 <= len(opened) <= 2


def test_closing_stops_what_is_under_way(blocks: dict[Cid, bytes]) -> None:
    patience = replace(CALM, read_s=60, block_s=60)
    with lying(blocks, Exchange.hang) as liar:
        peer = HttpPeer(liar.url, patience=patience)
        asking = peer.get_many(list(blocks))
        threading.Timer(0.3, peer.close).start()
        with pytest.raises(PeerUnreachable):
            list(asking)


@pytest.mark.parametrize("stop", [HttpPeer.close, HttpPeer.abort])
def test_a_peer_that_does_not_even_connect_can_be_given_up(
    blocks: dict[Cid, bytes], stop: Callable[[HttpPeer], None]
) -> None:
    with ExitStack() as stack, socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        for _ in range(4):  # its queue is full, so the kernel drops whoever comes next
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        peer = stack.enter_context(HttpPeer(url, patience=replace(CALM, connect_s=120)))
        threading.Timer(0.3, stop, [peer]).start()
        with pytest.raises(PeerUnreachable):
            list(peer.get_many([last_leaf(blocks)]))


def test_urls_of_a_block_name_its_gateway(blocks: dict[Cid, bytes]) -> None:
    root = next(iter(blocks))
    with lying(blocks) as liar, HttpPeer(f"{liar.url}/ipfs/{root}", patience=CALM) as peer:
        assert peer.name == liar.url
        assert dict(peer.get_many([root])) == {root: blocks[root]}
