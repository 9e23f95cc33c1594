"""HTTPS: HTTP/2 as programs on the open network ask for it, HTTP/1.1 for others, and the limits of both."""

import asyncio
import http.client
import socket
import ssl
import threading
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.types import Receive, Scope, Send

from cyberkv.benchmarks import made_up
from cyberkv.cybergraph.gateway import Published, build_app, http2, limits, patience, tls
from cyberkv.cybergraph.gateway.limits import Limited
from cyberkv.cybergraph.gateway.tls import Certificate, TlsServer
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import MemoryStore
from tests.wire.conftest import Serve, Served, Trust, running
from tests.wire.http2 import Http2, trusting
from tests.wire.synthetic import contents, conversation
from tests.wire.test_gateway_limits import hello
from tests.wire.test_gateway_patience import ended, hardly_reading, record_large


def test_both_protocols_give_the_same(serve: Serve, trust: Trust, there: Index) -> None:
    store, root = conversation(blocks=30)
    blocks = contents(store, root)
    there.publish(root, blocks)
    served = serve(build_app(Published(store, there)))
    assert served.url.startswith("https://127.0.0.1:")
    older = http.client.HTTPSConnection(served.url.removeprefix("https://"), timeout=20, context=trust("http/1.1"))
    with closing(Http2(served, trust("h2", "http/1.1"))) as newer, closing(older):
        assert newer.protocol == "h2"
        for path in (f"/ipfs/{root}?format=raw", f"/ipfs/{root}?format=car", "/ipfs/bafkqaaa?format=raw",
                     f"/ipfs/{list(blocks)[-1]}?format=raw", "/ipfs/x", "/"):  # fmt: skip
            for method in ("GET", "HEAD"):
                older.request(method, path)
                one = older.getresponse()
                body, two = one.read(), newer.get(path, method)
                assert (two.status, two.body, two.whole) == (one.status, body, True)
                ours = {name.lower(): value for name, value in one.getheaders()}
                for headers in (ours, two.headers):
                    for name in ("date", "transfer-encoding", "connection"):
                        headers.pop(name, None)
                assert two.headers == ours
                assert "server" not in ours
        assert newer.get(f"/ipfs/{root}?format=raw").body == blocks[root]


def test_many_requests_on_one_connection(serve: Serve, trust: Trust, there: Index) -> None:
    store, root = conversation(blocks=60)
    blocks = contents(store, root)
    there.publish(root, blocks)
    with closing(Http2(serve(build_app(Published(store, there))), trust("h2"))) as connection:
        for some in (list(blocks)[:50], list(blocks)[50:100], [root] * 50):
            streams = [connection.ask(f"/ipfs/{cid}?format=raw") for cid in some]
            assert [answer.body for answer in connection.answers(*streams)] == [blocks[cid] for cid in some]


def test_an_answer_that_cannot_be_finished_is_visibly_short(serve: Serve, trust: Trust, there: Index) -> None:
    store, root = conversation(blocks=30)
    blocks = contents(store, root)
    there.publish(root, blocks)
    store.delete_many([list(blocks)[-1]])
    served = serve(build_app(Published(store, there)))
    with closing(Http2(served, trust("h2"))) as connection:
        answer = connection.get(f"/ipfs/{root}?format=car")
        assert (answer.status, answer.whole) == (200, False)
    older = http.client.HTTPSConnection(served.url.removeprefix("https://"), timeout=20, context=trust("http/1.1"))
    with closing(older):
        older.request("GET", f"/ipfs/{root}?format=car")
        with pytest.raises((http.client.IncompleteRead, OSError)):
            older.getresponse().read()
    with closing(Http2(served, trust("h2"))) as connection:
        assert connection.get(f"/ipfs/{root}?format=raw").whole


def test_a_reader_that_takes_nothing_is_left(
    serve: Serve, trust: Trust, there: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "STALL_S", 0.3)
    store = MemoryStore()
    root = record_large(store)
    there.publish(root, contents(store, root))
    served = serve(build_app(Published(store, there)))
    with closing(Http2(served, trust("h2"))) as stalled:
        stalled.ask(f"/ipfs/{root}?format=car")  # and never opens its window
        while not served.answered:
            threading.Event().wait(0.02)
        assert served.body_bytes < 16 << 20
        assert ended(stalled.socket)
    with closing(trusting(served, trust("http/1.1"))) as older:
        older.sendall(f"GET /ipfs/{root}?format=car HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        while served.answered < 2:
            threading.Event().wait(0.02)


def test_a_reader_that_takes_a_byte_now_and_then_is_left(
    serve: Serve, trust: Trust, monkeypatch: pytest.MonkeyPatch, there: Index
) -> None:
    monkeypatch.setattr(patience, "STALL_S", 1.0)
    store = MemoryStore()
    root = record_large(store)
    there.publish(root, contents(store, root))
    served = serve(build_app(Published(store, there)))
    with closing(Http2(served, trust("h2"), window_bytes=10)) as trickling:
        stream = trickling.ask(f"/ipfs/{root}?format=car")
        with suppress(OSError):
            for _ in range(200):  # twenty times as long as it may take nothing
                threading.Event().wait(0.1)
                trickling.take(stream, 1)
            raise AssertionError("it is still answered")
    assert served.answered == 1


@pytest.mark.parametrize("last", ["", "Connection: close\r\n"])
def test_a_slow_reader_gets_all_of_the_last_answer(
    serve: Serve, trust: Trust, monkeypatch: pytest.MonkeyPatch, there: Index, last: str
) -> None:
    monkeypatch.setattr(patience, "HEAD_S", 0.2)
    monkeypatch.setattr(tls, "GRACE_S", 0.2)
    store = MemoryStore()
    root = made_up.record(store, 2 << 20, leaf_bytes=2 << 20, leaf_hash="blake3")
    leaf = next(cid for cid in contents(store, root) if cid.codec == "raw")
    there.publish(root, contents(store, root))
    served = serve(build_app(Published(store, there)))
    got_bytes, asked = 0, f"GET /ipfs/{leaf}?format=raw HTTP/1.1\r\nHost: a\r\n"
    with closing(trust("http/1.1").wrap_socket(hardly_reading(served), server_hostname="localhost")) as slow:
        slow.sendall(f"{asked}\r\n{asked}\r\n{asked}{last}\r\n".encode())
        while data := slow.recv(1 << 14):
            got_bytes += len(data)
            threading.Event().wait(0.003)
    assert 6 << 20 < got_bytes < (6 << 20) + 8192


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
def test_a_connection_without_a_request_is_closed(
    serve: Serve, trust: Trust, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    monkeypatch.setattr(patience, "HEAD_S", 0.3)
    served = serve(hello)
    host, port = served.url.removeprefix("https://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as silent:  # not even a handshake
        assert ended(silent)
    with closing(trusting(served, trust(protocol))) as idle:
        assert ended(idle)
    with closing(trusting(served, trust(protocol))) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow" if protocol != "h2" else b"PRI * HTT")
        assert ended(slow)


def test_limits_hold_as_without_tls(serve: Serve, trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_REQUESTS", 0)
    served = serve(Limited(hello, lambda _: None))
    with closing(Http2(served, trust("h2"))) as connection:
        answer = connection.get("/")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        monkeypatch.setattr(limits, "MOST_CONNECTIONS", 1)
        host, port = served.url.removeprefix("https://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as refused:
            assert ended(refused)
        assert connection.get("/").status == 503


def test_connections_are_counted_before_their_handshake(
    serve: Serve, trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MOST_CONNECTIONS", 3)
    served = serve(hello)
    host, port = served.url.removeprefix("https://").split(":")
    with ExitStack() as opened:
        for _ in range(3):  # which say nothing
            opened.enter_context(socket.create_connection((host, int(port)), timeout=20))
        with socket.create_connection((host, int(port)), timeout=5) as refused:
            assert ended(refused)
    while True:  # the server learns of an end in its own time
        with suppress(OSError), closing(Http2(served, trust("h2"))) as later:
            assert later.get("/").body == b"hi"
            break


def test_a_request_of_too_many_bytes_is_refused(serve: Serve, trust: Trust) -> None:
    served = serve(Limited(hello, lambda _: None))
    for size, statuses in ((8000, {200}), (16_300, {431, 0}), (100_000, {0})):
        with closing(Http2(served, trust("h2"))) as connection:
            assert connection.get("/" + "x" * size).status in statuses
    with closing(trusting(served, trust("http/1.1"))) as older:
        older.sendall(b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n")
        assert older.recv(1 << 16).split(b" ")[1] in (b"400", b"431")


def test_what_is_not_tls_changes_nothing_and_is_not_talked_about(
    serve: Serve, trust: Trust, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(patience, "HEAD_S", 0.5)  # a handshake that does not go on
    served = serve(hello)
    host, port = served.url.removeprefix("https://").split(":")
    for sent in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", bytes(1000)):
        with socket.create_connection((host, int(port)), timeout=20) as plain:
            plain.sendall(sent)
            assert ended(plain)
    with closing(trusting(served, trust("h2"))) as garbage:
        garbage.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 500)
        assert ended(garbage)
    with closing(Http2(served, trust("h2"))) as connection:
        assert connection.get("/").body == b"hi"
    assert capfd.readouterr() == ("", "")


def test_old_versions_of_tls_are_refused(serve: Serve, trust: Trust) -> None:
    served = serve(hello)
    older = trust("http/1.1")
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    with closing(trusting(served, older)) as connection:
        assert connection.version() == "TLSv1.2"
    with pytest.raises(ssl.SSLCertVerificationError):
        trusting(served, ssl.create_default_context())


def test_the_end_waits_for_answers_under_way_and_not_for_idle_connections(
    files: tuple[Path, Path], trust: Trust
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        asked.set()
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        await hello(scope, receive, send)

    ready = threading.Event()
    server = TlsServer(slow, "127.0.0.1", 0, lambda _: ready.set(), Certificate(*files))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    assert ready.wait(20)
    served = Served(server.url)
    with closing(Http2(served, trust("h2"))) as busy, closing(Http2(served, trust("h2"))) as idle:
        stream = busy.ask("/")
        assert asked.wait(20)
        server.should_exit = True
        assert ended(idle.socket)
        go_on.set()
        assert busy.answers(stream)[0].body == b"hi"
        thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
def test_little_waits_unencrypted_beside_what_is_encrypted_already(
    files: tuple[Path, Path], trust: Trust, protocol: str
) -> None:
    servers: list[TlsServer] = []

    def make(*arguments: object) -> TlsServer:
        servers.append(TlsServer(*arguments, Certificate(*files)))  # type: ignore[arg-type]
        return servers[-1]

    with running(hello, make=make) as served, closing(trusting(served, trust(protocol))):

        def limits_bytes() -> list[int]:
            connections = cast("set[Any]", servers[0].server_state.connections)
            return [each.transport.get_write_buffer_limits()[1] for each in connections]

        for _ in range(1000):  # a handshake ends here a little later than there
            if limits_bytes() == [http2.AHEAD_BYTES]:
                break
            threading.Event().wait(0.01)
        assert limits_bytes() == [http2.AHEAD_BYTES]
        assert http2.AHEAD_BYTES < patience.AHEAD_BYTES
