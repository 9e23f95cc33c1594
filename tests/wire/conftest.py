"""A real server in this process: the application that ships, on 127.0.0.1 and a free port, counted."""

import ssl
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.gateway import GatewayServer, Published, build_app
from cyberkv.cybergraph.gateway.tls import Certificate, TlsServer
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.peers import HttpPeer
from cyberkv.cybergraph.peers.line import Patience
from cyberkv.cybergraph.store import MemoryStore, Store
from tests.compat.certificate import make_certificate
from tests.wire.synthetic import record

if TYPE_CHECKING:
    from tests.wire.example import Example
    from tests.wire.sealed_home import SealedTalk, Template

CALM = Patience(connect_s=30, read_s=30, block_s=60, retries=1, wait_s=0.2)
"""For servers that answer at once, on however busy a machine."""
HASTY = Patience(connect_s=30, read_s=0.6, block_s=1.2, retries=1, wait_s=0.2)
"""For servers that make a reader wait: the test waits this long, and no longer."""


@dataclass
class Served:
    """A running gateway and what it was asked."""

    url: str = ""
    requests: list[str] = field(default_factory=list)
    """Path and query of every request."""
    body_bytes: int = 0
    """Bytes of all bodies sent."""
    answered: int = 0
    """Requests that are over, in whichever way."""


Serve = Callable[[ASGIApp], Served]
"""Serves an application with TLS."""
Trust = Callable[..., ssl.SSLContext]
"""Gives a reader's settings for these protocols."""


def counted(app: ASGIApp, served: Served) -> ASGIApp:
    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        served.requests.append(f"{scope['path']}?{scope['query_string'].decode()}")

        async def counting(message: Message) -> None:
            served.body_bytes += len(message.get("body", b""))
            await send(message)

        try:
            await app(scope, receive, counting)
        finally:
            served.answered += 1

    return wrapped


@contextmanager
def running(
    app: ASGIApp, host: str = "127.0.0.1", make: Callable[..., GatewayServer] = GatewayServer
) -> Iterator[Served]:
    """Serve an application in a thread until the block ends."""
    served, ready = Served(), threading.Event()

    def is_ready(url: str) -> None:
        served.url = url
        ready.set()

    server = make(counted(app, served), host, 0, is_ready)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        assert ready.wait(30)
        yield served
    finally:
        server.should_exit = True
        thread.join(120)
        stuck = sys._current_frames().get(thread.ident or 0)
        assert not thread.is_alive(), "".join(traceback.format_stack(stuck))


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Index]:
    """The index of the other home."""
    with Index(tmp_path / "there") as opened:
        yield opened


@pytest.fixture
def publish(there: Index) -> Iterator[Callable[..., Served]]:
    """Serve roots of a store: `publish(store, root, ...)`."""
    with ExitStack() as stack:

        def start(store: Store, *roots: Cid) -> Served:
            from cyberkv.cybergraph.chain import closure

            for root in roots:
                there.publish(root, closure(store, root))
            return stack.enter_context(running(build_app(Published(store, there))))

        yield start


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate that signs itself, and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def serve(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, there: Index) -> Iterator[Serve]:
    """Serve applications with TLS until the end of the test, before its limits and its index are taken away."""
    with ExitStack() as stack:

        def start(app: ASGIApp) -> Served:
            def make(*arguments: object) -> TlsServer:
                return TlsServer(*arguments, Certificate(*files))  # type: ignore[arg-type]

            return stack.enter_context(running(app, make=make))

        yield start


@pytest.fixture
def trust(files: tuple[Path, Path]) -> Trust:
    """A reader's settings, `trust("h2", ...)`: the certificate is checked, and these protocols are offered."""

    def settings(*protocols: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=files[0])
        context.set_alpn_protocols(list(protocols))
        return context

    return settings


@pytest.fixture(scope="session")
def two_pages(tmp_path_factory: pytest.TempPathFactory) -> "Template":
    """A home with one sealed conversation of two pages."""
    from tests.wire.sealed_home import Template

    return Template.make(tmp_path_factory.mktemp("sealed") / "there", blocks=270)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Example]":
    """A small graph with blocks of every codec, served."""
    from tests.wire.example import served_example

    with served_example(tmp_path_factory.mktemp("example")) as served:
        yield served


@pytest.fixture
def store() -> MemoryStore:
    """Two conversations with a common prefix."""
    store = MemoryStore()
    record(store, blocks=3, seed="a")
    record(store, blocks=4, seed="a")
    return store


@pytest.fixture
def roots(store: MemoryStore) -> list[Cid]:
    """Of the longer and of the shorter one."""
    return [record(store, blocks=4, seed="a"), record(store, blocks=3, seed="a")]


@pytest.fixture
def public(store: MemoryStore, roots: list[Cid]) -> Cid:
    return roots[1]


@pytest.fixture
def peer_at() -> Iterator[Callable[..., HttpPeer]]:
    """Open a peer, `peer_at(url, patience)`; closed at the end."""
    with ExitStack() as stack:

        def connect(url: str, patience: Patience = CALM) -> HttpPeer:
            return stack.enter_context(HttpPeer(url, patience=patience))

        yield connect


@pytest.fixture
def talk(two_pages: "Template", tmp_path: Path) -> "Iterator[SealedTalk]":
    """A conversation of two pages."""
    with two_pages.copied(tmp_path / "there") as copy:
        yield copy
