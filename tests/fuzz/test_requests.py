"""Requests that were right once: the gateway answers or refuses, never fails, and shows nothing private."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings

from cyberkv.cybergraph.chain import closure
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.dagjson import encode
from cyberkv.cybergraph.gateway import Published, build_app
from cyberkv.cybergraph.gateway.pages import Pages
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.peers.proving import ASK_AT, PROVE_AT
from cyberkv.cybergraph.store import MemoryStore
from tests.fuzz.edits import spoilt
from tests.wire.conftest import Served, running
from tests.wire.sealed_home import Home, guarding
from tests.wire.synthetic import record

PRIVATE_TITLE = b"nobody may see this"
LAST = b"\r\n\r\nGET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Cid, Cid, MemoryStore]]:
    store = MemoryStore()
    public = record(store, blocks=3, seed="a")
    private = record(store, blocks=4, seed=PRIVATE_TITLE.decode())
    folder: Path = tmp_path_factory.mktemp("fuzz")
    with Index(folder / "index") as index:
        index.publish(public, closure(store, public))
        index.set_head(PRIVATE_TITLE.decode().replace(" ", "-"), private, "2026-01-01T00:00:00Z")
        content = Published(store, index)
        with running(build_app(content, Pages(content))) as served:
            yield served, public, private, store


def requests(*cids: Cid) -> list[bytes]:
    targets = ["/", "/diff", "/style.css", "/health", "/ipfs/bafkqaaa"]
    for cid in cids:
        paths = ("", "?format=raw", "?format=car&dag-scope=entity", "/segments/0/links/1/to?format=dag-json", "/title")
        targets += [f"/ipfs/{cid}{path}" for path in paths]
        targets.append(f"/diff?a={cid}&b={cid}")
    headers = [
        "Accept: text/html", "Accept: application/vnd.ipld.car; order=dfs; dups=y", "Range: bytes=0-9",
        "If-None-Match: *", "Origin: http://b", "Content-Length: 3\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n0",
    ]  # fmt: skip
    return [
        f"{method} {target} HTTP/1.1\r\nHost: a\r\n{headers[at % len(headers)]}\r\n\r\n".encode()
        for at, target in enumerate(targets)
        for method in ("GET", "HEAD", "POST", "OPTIONS")[: 1 + at % 4]
    ]


def said(served: Served, data: bytes, wait_s: float = 0.5) -> bytes:
    """Send bytes, then a request that ends the connection, and give all that comes; some requests are never whole."""
    host, port = served.url.removeprefix("http://").split(":")
    answer = b""
    with socket.create_connection((host, int(port)), timeout=wait_s) as connection, suppress(OSError):
        connection.sendall(data + LAST)
        while part := connection.recv(1 << 16):
            answer += part
    return answer


def test_spoilt_requests_are_answered_or_refused(shown: tuple[Served, Cid, Cid, MemoryStore]) -> None:
    served, public, private, store = shown
    secret = {cid: store.get(cid) for cid in set(closure(store, private)) - set(closure(store, public))}
    statuses: set[bytes] = set()

    @settings(max_examples=200)
    @given(spoilt(requests(public, private)))
    def check(data: bytes) -> None:
        answer = said(served, data)
        heads = [part.split(b" ", 1)[0] for part in answer.split(b"HTTP/1.1 ")[1:]]
        statuses.update(heads)
        assert not {b"500", b"502", b"503"} & {*heads}, answer[:300]  # 501 is for paths that lead to no block
        assert not answer or answer.startswith(b"HTTP/1.1 ")
        for cid, block in secret.items():
            assert block[:48] not in answer
            assert cid not in answer
            assert str(cid).encode() not in answer or str(private).encode()[:20] in data
        assert PRIVATE_TITLE not in answer.replace(b"-", b" ")

    check()
    assert {b"200", b"400", b"404", b"405"} <= statuses
    assert said(served, b"GET / HTTP/1.1\r\nHost: a", 20).startswith(b"HTTP/1.1 200")
    control = said(served, f"GET /ipfs/{public}?format=raw HTTP/1.1\r\nHost: a".encode(), 20)
    assert store.get(public)[:48] in control


def posted(target: str, body: bytes) -> bytes:
    return f"POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def test_spoilt_requests_open_no_door(tmp_path: Path) -> None:
    """Challenges, proofs and tokens that were nearly right: nothing sealed comes out."""
    with Index(tmp_path / "index") as index:
        home = Home(MemoryStore(), index)
        talk = home.seal("a", blocks=3)
        with guarding(home) as (served, door, _):
            withheld = {cid: home.store.get(cid) for cid in talk.withheld()}
            asked = encode({"root": str(talk.root), "scheme": "access-sig/ed25519/1"})
            answer = encode({"challenge": bytes(200), "proof": bytes(64)})
            gets = [f"GET /ipfs/{cid}?format=raw" for cid in (talk.root, *withheld)]
            seeds = [posted(ASK_AT, asked), posted(PROVE_AT, answer)] * 3
            seeds += [
                f"{line} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {'A' * 43}\r\n\r\n".encode() for line in gets
            ]
            seeds += [f"{line} HTTP/1.1\r\nHost: a\r\nAccept: text/html\r\n\r\n".encode() for line in gets]
            statuses: set[bytes] = set()

            @settings(max_examples=80)
            @given(spoilt(seeds))
            def check(data: bytes) -> None:
                answer = said(served, data)
                statuses.update(part.split(b" ", 1)[0] for part in answer.split(b"HTTP/1.1 ")[1:])
                assert not {b"500", b"502", b"503"} & statuses, answer[:300]
                assert not any(block[4:36] in answer for block in withheld.values())
                assert b'token":' not in answer

            check()
            assert {b"200", b"400", b"401", b"404"} <= statuses
            assert door.open_count <= 120
            control = said(served, f"GET /ipfs/{talk.root}?format=raw HTTP/1.1\r\nHost: a".encode(), 20)
            assert home.store.get(talk.root)[:32] in control
