"""Requests that name the whole URL, as to a proxy: a server of HTTP/1.1 has to take them."""

import socket
from collections.abc import Callable
from contextlib import closing

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.gateway import Published, build_app
from cyberkv.cybergraph.gateway.front import guarded
from cyberkv.cybergraph.gateway.metrics import Metrics
from cyberkv.cybergraph.gateway.pages import Pages
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import MemoryStore
from tests.wire.asking import BROWSER, Answer, asking
from tests.wire.conftest import Serve, Served, Trust, running
from tests.wire.http2 import Http2


def test_a_whole_url_is_answered_as_its_path(store: MemoryStore, public: Cid, publish: Callable[..., Served]) -> None:
    ask = asking(publish(store, public).url)
    for path in (f"/ipfs/{public}?format=raw", f"/ipfs/{public}/segments%2F0?format=dag-json", "/ipfs/x", "/none", "/"):
        for whole in (f"http://any.example{path}", f"HTTPS://any.example:1{path}"):
            given, expected = ask(whole), ask(path)
            assert (given.status, given.headers, given.body) == (expected.status, expected.headers, expected.body)
    assert ask(f"http://any.example/ipfs/{public}?format=raw").body == store.get(public)


@pytest.mark.parametrize("target", ["ftp://a/ipfs/bafkqaaa", "http:///ipfs/bafkqaaa", "http://a@b/ipfs/bafkqaaa",
                                    "http:/ipfs/bafkqaaa", "a/http://a/ipfs/bafkqaaa"])  # fmt: skip
def test_what_is_no_such_url_is_nothing(publish: Callable[..., Served], target: str) -> None:
    ask = asking(publish(MemoryStore()).url)
    assert (ask(target).status, ask("http://a/ipfs/bafkqaaa").status, ask("http://a?b").status) == (404, 200, 404)


def test_the_host_in_the_url_counts(there: Index) -> None:
    content = Published(MemoryStore(), there)
    with running(guarded(build_app(content, Pages(content)), content, Metrics())) as served:

        def ask(target: str, host: str) -> Answer:
            return asking(served.url)(target, host=host, accept=BROWSER)

        assert ask("http://localhost/metrics", "elsewhere.example").status == 200
        assert ask("http://elsewhere.example/metrics", "localhost").status == 404
        assert ask("http://localhost", "localhost").body == ask("/", "localhost").body


def test_http_2_writes_the_parts_apart(serve: Serve, trust: Trust, there: Index) -> None:
    with closing(Http2(serve(build_app(Published(MemoryStore(), there))), trust("h2"))) as connection:
        assert connection.get("/ipfs/bafkqaaa").status == 200
        assert connection.get("http://localhost/ipfs/bafkqaaa").status in (0, 404)


def test_over_tls_as_without(serve: Serve, trust: Trust, there: Index) -> None:
    served = serve(build_app(Published(MemoryStore(), there)))
    host, port = served.url.removeprefix("https://").split(":")
    with (
        socket.create_connection((host, int(port)), timeout=20) as plain,
        trust("http/1.1").wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall(b"GET https://localhost/ipfs/bafkqaaa HTTP/1.1\r\nHost: a\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
