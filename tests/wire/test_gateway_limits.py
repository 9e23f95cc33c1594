"""What one reader, and all together, may have of a server: too much is put off with a word when to come back."""

import asyncio
import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from cyberkv.cybergraph.gateway import GatewayServer, limits
from cyberkv.cybergraph.gateway.limits import Limited, Rate, is_local, may_connect
from tests.wire.conftest import Served, running

ELSEWHERE = "192.0.2.7"


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


def seen_from(app: ASGIApp, host: str) -> ASGIApp:
    """The application as a reader at another address meets it."""

    async def moved(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "client": (host, 1)}, receive, send)

    return moved


def get(served: Served, **headers: str) -> tuple[int, str | None, bytes]:
    with closing(http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=20)) as connection:
        connection.request("GET", "/", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("retry-after"), answer.read()


def test_who_asks_too_fast_is_put_off_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BURST_REQUESTS", 3.0)
    monkeypatch.setattr(limits, "RATE_REQUESTS_S", 0.0)
    words: list[str] = []
    limited = Limited(hello, words.append)
    with running(seen_from(limited, ELSEWHERE)) as far, running(limited) as near:
        assert [get(far)[0] for _ in range(5)] == [200, 200, 200, 429, 429]
        assert get(far)[1] == "1"
        assert b"too many requests from your address" in get(far)[2]
        assert [get(near)[0] for _ in range(5)] == [200] * 5
    assert words == ["rate"] * 4


def test_a_proxy_on_this_machine_says_for_whom_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BURST_REQUESTS", 2.0)
    monkeypatch.setattr(limits, "RATE_REQUESTS_S", 0.0)
    with running(Limited(hello, lambda _: None)) as served:

        def asked_for(addresses: str) -> int:
            return get(served, **{"X-Forwarded-For": addresses})[0]

        assert [asked_for(ELSEWHERE) for _ in range(4)] == [200, 200, 429, 429]
        assert asked_for(f"127.0.0.1, {ELSEWHERE}") == 429  # what the reader itself put before is not believed
        assert asked_for("192.0.2.8") == 200
        assert get(served)[0] == 200


def test_a_bucket_fills_with_time() -> None:
    rate = Rate()
    burst = int(limits.BURST_REQUESTS)
    assert sum(rate.take(ELSEWHERE, 0.0) for _ in range(burst + 50)) == burst
    assert rate.take("192.0.2.8", 0.0)
    assert sum(rate.take(ELSEWHERE, 0.01) for _ in range(50)) == int(limits.RATE_REQUESTS_S / 100)
    assert sum(rate.take(ELSEWHERE, 1e6) for _ in range(burst + 50)) == burst


def test_memory_for_addresses_is_bounded() -> None:
    rate = Rate()
    for number in range(10_000):
        rate.take(f"10.0.{number >> 8}.{number & 255}", 0.0)
    assert len(rate._buckets) == limits._MOST_ADDRESSES


def test_one_network_of_version_6_is_one_reader() -> None:
    rate = Rate()
    burst = int(limits.BURST_REQUESTS)
    assert sum(rate.take(f"2001:db8::{number:x}", 0.0) for number in range(burst + 50)) == burst
    assert rate.take("2001:db8:0:1::1", 0.0)


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("::ffff:127.0.0.1", True), ("192.0.2.1", False),
     ("10.0.0.1", False), ("::", False), ("::ffff:10.0.0.1", False), ("", False), ("localhost", False)],
)  # fmt: skip
def test_what_is_this_machine(host: str, local: bool) -> None:
    assert is_local(host) is local


def test_connections_are_counted_by_address_and_in_all() -> None:
    each, most = limits.MOST_CONNECTIONS_EACH, limits.MOST_CONNECTIONS
    assert may_connect(ELSEWHERE, [ELSEWHERE] * (each - 1))
    assert not may_connect(ELSEWHERE, [ELSEWHERE] * each)
    assert may_connect("192.0.2.8", [ELSEWHERE] * each)
    assert may_connect("127.0.0.1", ["127.0.0.1"] * (most - 1))
    assert not may_connect("127.0.0.1", ["127.0.0.1"] * most)
    assert not may_connect("::ffff:192.0.2.7", [ELSEWHERE] * each)
    assert not may_connect("2001:db8::1", [f"2001:db8::{number}" for number in range(each)])


@pytest.fixture
def held() -> Iterator[tuple[ASGIApp, threading.Event]]:
    """An application that answers once the event is set."""
    release = threading.Event()

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        while not release.is_set():
            await asyncio.sleep(0.01)
        await hello(scope, receive, send)

    yield wait, release
    release.set()


def test_too_many_requests_at_once(held: tuple[ASGIApp, threading.Event], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_REQUESTS", 2)
    app, release = held
    words: list[str] = []
    with running(Limited(app, words.append)) as served, ExitStack() as opened:
        first = []
        for _ in range(2):
            connection = opened.enter_context(closing(connect(served)))
            connection.request("GET", "/")
            first.append(connection)
        while len(served.requests) < 2:
            threading.Event().wait(0.01)
        assert get(served)[:2] == (503, "1")
        release.set()
        assert [connection.getresponse().read() for connection in first] == [b"hi", b"hi"]
        assert get(served)[0] == 200
    assert words == ["busy"]


def test_too_many_requests_at_once_from_one_address(
    held: tuple[ASGIApp, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MOST_REQUESTS_EACH", 2)
    app, release = held
    with running(Limited(app, lambda _: None)) as served, ExitStack() as opened:

        def ask(host: str) -> http.client.HTTPConnection:
            connection = opened.enter_context(closing(connect(served)))
            connection.request("GET", "/", headers={"X-Forwarded-For": host})
            return connection

        first = [ask(host) for host in (ELSEWHERE, ELSEWHERE, "192.0.2.8", "127.0.0.1", "127.0.0.1", "127.0.0.1")]
        while len(served.requests) < 6:
            threading.Event().wait(0.01)
        assert ask(ELSEWHERE).getresponse().status == 503
        release.set()
        assert [connection.getresponse().status for connection in first] == [200] * 6
        assert ask(ELSEWHERE).getresponse().status == 200


@pytest.mark.parametrize(("lengths", "answers"), [("", 2), ("Content-Length: 5\r\n", 2), ("Content-Length: 6\r\n", 1)])
def test_a_body_with_two_lengths_hides_no_request(lengths: str, answers: int) -> None:
    kind = "" if lengths.endswith("5\r\n") else "Transfer-Encoding: chunked\r\n"
    with running(Limited(hello, lambda _: None)) as served:
        host, port = served.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as sender:
            hidden = "GET /hidden HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
            sender.sendall(f"GET / HTTP/1.1\r\nHost: a\r\n{lengths}{kind}\r\n0\r\n\r\n{hidden}".encode())
            with sender.makefile("rb") as received:
                assert received.read().count(b"HTTP/1.1 ") == answers


def test_the_system_holds_little_of_what_a_slow_reader_waits_for() -> None:
    """Or it says for half a minute and more that nothing is taken, though something is."""
    server = GatewayServer(hello, "127.0.0.1", 0, lambda _: None)
    with closing(server._socket) as listening:
        reader = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
        with reader, accepted:
            held_bytes = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
    assert 0 < held_bytes < 1 << 20


def test_connections_never_take_all_descriptors() -> None:
    """A process commonly has 1024, and the store and its index need some."""
    server = GatewayServer(hello, "127.0.0.1", 0, lambda _: None)
    server._socket.close()
    assert limits.MOST_CONNECTIONS + server.config.backlog < 512


def connect(served: Served) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=20)


def test_too_many_connections_are_closed_at_once_and_there_is_room_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MOST_CONNECTIONS", 3)
    with running(hello) as served:
        host, port = served.url.removeprefix("http://").split(":")
        with ExitStack() as opened:
            for _ in range(3):
                connection = opened.enter_context(closing(connect(served)))
                connection.request("GET", "/")
                assert connection.getresponse().read() == b"hi"
            with socket.create_connection((host, int(port)), timeout=20) as refused:
                assert not _answer(refused)
        while True:  # the server learns of an end in its own time
            with socket.create_connection((host, int(port)), timeout=20) as later:
                if _answer(later).startswith(b"HTTP/1.1 200"):
                    break


def _answer(connection: socket.socket) -> bytes:
    try:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        return connection.recv(1 << 16)
    except ConnectionError:
        return b""


@pytest.mark.parametrize(
    "what", [b"GET /%s HTTP/1.1\r\nHost: a\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nX: %s\r\n\r\n"]
)
def test_a_request_of_too_many_bytes_is_refused(what: bytes) -> None:
    words: list[str] = []
    with running(Limited(hello, words.append)) as served:
        host, port = served.url.removeprefix("http://").split(":")
        half = limits.MOST_HEAD_BYTES // 2
        for size, statuses in ((half, b"200"), (2 * half - 3, b"400 431"), (20 * half, b"400 431")):
            with socket.create_connection((host, int(port)), timeout=20) as connection:
                connection.sendall(what % (b"x" * size))
                assert connection.recv(1 << 16).split(b" ")[1] in statuses.split()
    assert "head" in words


def test_an_answer_that_ends_badly_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_REQUESTS", 1)

    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError

    with running(Limited(fail, lambda _: None)) as served:
        assert [get(served)[0] for _ in range(3)] == [500] * 3
