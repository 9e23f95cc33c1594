"""Readers that hold on to a connection and do nothing with it, and more of them than there is memory for."""

import http.client
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from cyberkv.benchmarks import made_up
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.gateway import app, patience
from cyberkv.cybergraph.store import MemoryStore
from tests.wire.conftest import Served
from tests.wire.synthetic import conversation


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


def test_streams_beyond_the_limit_are_put_off(publish: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MOST_STREAMS", 2)
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
    with ExitStack() as opened:
        while stream().status != 200:  # what was read ahead for the others is still being dropped
            threading.Event().wait(0.05)


def record_large(store: MemoryStore) -> Cid:
    """64 MiB below one root."""
    return made_up.record(store, 64 << 20, leaf_bytes=256 << 10, leaf_hash="blake3")
