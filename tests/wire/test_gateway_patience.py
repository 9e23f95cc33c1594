"""Readers that hold on to a connection and do nothing with it, and more of them than there is memory for."""

import gc
import http.client
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress

import pytest

from cyberkv.benchmarks import made_up
from cyberkv.cybergraph.chain import closure
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.gateway import GatewayServer, Published, Several, build_app, carstream, limits, patience
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import MemoryStore
from tests.wire.conftest import Served, running
from tests.wire.synthetic import conversation
from tests.wire.test_gateway_limits import ELSEWHERE, seen_from


def ended(connection: socket.socket) -> bool:
    """Wait for the other side to close."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        return True
    return True


@pytest.mark.parametrize("sent", [b"", b"GET /ipfs/x HTTP/1.1\r\nHost: a\r\nX-Slow"])
def test_a_connection_without_a_request_is_closed(
    publish: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(patience, "HEAD_S", 0.3)
    store, root = conversation(blocks=1)
    served = publish(store, root)
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as first:
        first.sendall(sent)
        assert ended(first)
    with socket.create_connection((host, int(port)), timeout=20) as second:  # also after an answer
        second.sendall(f"GET /ipfs/{root}?format=raw HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        second.sendall(sent)
        assert ended(second)


@pytest.mark.parametrize("begun", [b"", b"x"])
def test_a_body_that_does_not_end_is_not_waited_for(
    publish: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(patience, "HEAD_S", 0.3)
    store, root = conversation(blocks=1)
    host, port = publish(store, root).url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as reader:
        head = f"GET /ipfs/{root}?format=raw HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"
        reader.sendall(head.encode() + begun)
        assert reader.recv(1 << 16).startswith(b"HTTP/1.1 200")
        reader.sendall(b"x")
        assert ended(reader)


def test_no_other_clock_ends_a_connection_earlier() -> None:
    server = GatewayServer(build_app(Several([])), "127.0.0.1", 0, lambda _: None)
    with closing(server._socket):
        assert server.config.timeout_keep_alive > patience.HEAD_S


def test_a_reader_that_takes_nothing_is_left(publish: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "STALL_S", 0.3)
    store = MemoryStore()
    root = record_large(store)
    served = publish(store, root)
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as stalled:
        stalled.sendall(f"GET /ipfs/{root}?format=car HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        while not served.answered:
            threading.Event().wait(0.05)
        assert 0 < served.body_bytes < 64 << 20
        assert ended(stalled)


def test_a_reader_that_takes_no_small_answer_gives_its_place_up(
    publish: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for it is less than what makes a sender pause, and more than the system holds."""
    monkeypatch.setattr(patience, "HEAD_S", 0.3)
    monkeypatch.setattr(patience, "STALL_S", 0.3)
    monkeypatch.setattr(limits, "MOST_CONNECTIONS", 1)
    store = MemoryStore()
    root = made_up.record(store, 2 << 20, leaf_bytes=2 << 20, leaf_hash="blake3")
    leaf = next(cid for cid in closure(store, root) if cid.codec == "raw")
    served = publish(store, root)
    with hardly_reading(served) as stalled:
        stalled.sendall(f"GET /ipfs/{leaf}?format=raw HTTP/1.1\r\nHost: a\r\n\r\n".encode() * 2)
        while served.answered < 2:
            threading.Event().wait(0.02)
        assert any(answers(served) for _ in range(100) if not threading.Event().wait(0.05))


def hardly_reading(served: Served) -> socket.socket:
    """Connect with little room for answers."""
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.settimeout(20)
    host, port = served.url.rpartition("//")[2].split(":")
    reader.connect((host, int(port)))
    return reader


def answers(served: Served) -> bool:
    """Whether there is room for one more connection."""
    connection = http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=20)
    with closing(connection), suppress(http.client.RemoteDisconnected, ConnectionError):
        connection.request("GET", "/ipfs/bafkqaaa?format=raw")
        return connection.getresponse().status == 200
    return False


def test_streams_beyond_the_limit_are_put_off(publish: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carstream, "MOST_STREAMS", 2)
    store = MemoryStore()
    root = record_large(store)
    served = publish(store, root)
    address = served.url.removeprefix("http://")

    def stream() -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(address, timeout=20)
        opened.callback(connection.close)
        connection.request("GET", f"/ipfs/{root}?format=car")
        answer = connection.getresponse()
        opened.callback(answer.close)
        return answer

    with ExitStack() as opened:
        assert [stream().status, stream().status] == [200, 200]
        refused = stream()
        assert (refused.status, refused.getheader("retry-after")) == (503, "1")
    while served.answered < 3:
        threading.Event().wait(0.05)
    gc.disable()  # what a reader held is given back when he leaves, not when somebody finds it unused
    with ExitStack() as opened:
        opened.callback(gc.enable)
        while stream().status != 200:  # what was read ahead for the others is still being dropped
            threading.Event().wait(0.05)


def test_one_reader_does_not_take_all_streams(there: Index) -> None:
    store = MemoryStore()
    root = record_large(store)
    there.publish(root, closure(store, root))
    app = build_app(Published(store, there))
    with running(seen_from(app, ELSEWHERE)) as far, running(app) as near, ExitStack() as opened:

        def stream(served: Served) -> int:
            connection = opened.enter_context(closing(http.client.HTTPConnection(served.url[7:], timeout=20)))
            connection.request("GET", f"/ipfs/{root}?format=car")
            return opened.enter_context(closing(connection.getresponse())).status

        most = carstream.MOST_STREAMS_EACH
        assert [stream(far) for _ in range(most + 2)] == [200] * most + [503] * 2
        assert [stream(near) for _ in range(most + 2)] == [200] * (most + 2)


def test_the_server_ends_though_a_reader_takes_nothing(there: Index) -> None:
    store = MemoryStore()
    root = record_large(store)
    there.publish(root, closure(store, root))
    with ExitStack() as opened:
        with running(build_app(Published(store, there))) as served:
            host, port = served.url.removeprefix("http://").split(":")
            stalled = opened.enter_context(socket.create_connection((host, int(port)), timeout=20))
            stalled.sendall(f"GET /ipfs/{root}?format=car HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            while not served.body_bytes:
                threading.Event().wait(0.02)
        assert served.answered == 1
        assert served.body_bytes < 64 << 20
        assert ended(stalled)


def record_large(store: MemoryStore) -> Cid:
    """64 MiB below one root."""
    return made_up.record(store, 64 << 20, leaf_bytes=256 << 10, leaf_hash="blake3")
