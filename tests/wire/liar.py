"""A hand-written server over plain sockets: honest by default, and as dishonest as a test wants.

It shares no code with the gateway or with the reader, so it can also say what neither of them would.
"""

import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from cyberkv.cybergraph.car import car_header, car_section
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.nodes import links

RAW, CAR = "application/vnd.ipld.raw", "application/vnd.ipld.car; version=1; order=dfs; dups=n"


class Exchange:
    """One request, and the means to answer it in any way."""

    def __init__(self, server: "Liar", connection: socket.socket, target: str) -> None:
        self.server = server
        self.connection = connection
        self.target = target
        self.is_car = "format=car" in target

    @cached_property
    def cid(self) -> Cid:
        """What was asked for; of the probe for the block of nothing there is none."""
        return Cid.parse(self.target.split("/")[2].split("?", maxsplit=1)[0])

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)
        self.server.sent_bytes += len(data)

    def head(self, status: str = "200 OK", **headers: object) -> None:
        lines = [f"HTTP/1.1 {status}", *(f"{key.replace('_', '-')}: {value}" for key, value in headers.items())]
        self.send("\r\n".join([*lines, "", ""]).encode())

    def body(self) -> bytes:
        """What an honest server would send."""
        return self.server.car(self.cid) if self.is_car else self.server.blocks[self.cid]

    def answer(self, body: bytes, content_type: str | None = None) -> None:
        self.head(content_type=content_type or (CAR if self.is_car else RAW), content_length=len(body))
        self.send(body)

    def honest(self) -> None:
        if self.cid in self.server.blocks:
            self.answer(self.body())
        else:
            self.head("404 Not Found", content_length=0)

    def hang(self) -> None:
        """Say nothing until the server ends."""
        self.server.ended.wait(30)


class Liar(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, blocks: Mapping[Cid, bytes], behave: Callable[[Exchange], None]) -> None:
        self.blocks = dict(blocks)
        self.behave = behave
        self.ended = threading.Event()
        self.targets: list[str] = []
        self.sent_bytes = 0
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def dag(self, root: Cid) -> Iterator[Cid]:
        seen, ahead = set(), [root]
        while ahead:
            cid = ahead.pop()
            if cid not in seen and cid in self.blocks:
                seen.add(cid)
                yield cid
                ahead += reversed(links(self.blocks[cid]) if cid.codec == "dag-cbor" else [])

    def sections(self, root: Cid) -> list[bytes]:
        return [car_header([root]), *(car_section(cid, self.blocks[cid]) for cid in self.dag(root))]

    def car(self, root: Cid) -> bytes:
        return b"".join(self.sections(root))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that hangs up is the point of most tests."""


class _Handler(socketserver.StreamRequestHandler):
    server: Liar
    disable_nagle_algorithm = True

    def handle(self) -> None:
        while line := self.rfile.readline():
            while self.rfile.readline() not in (b"\r\n", b""):
                pass
            target = line.split()[1].decode()
            self.server.targets.append(target)
            self.server.behave(Exchange(self.server, self.connection, target))


@contextmanager
def lying(blocks: Mapping[Cid, bytes], behave: Callable[[Exchange], None] = Exchange.honest) -> Iterator[Liar]:
    """Run the server in a thread until the block ends."""
    with Liar(blocks, behave) as server, in_thread(server, server.ended):
        yield server


@contextmanager
def in_thread(server: socketserver.BaseServer, ended: threading.Event) -> Iterator[None]:
    """Run a server in a thread until the block ends, which its answers under way are told."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        ended.set()
        server.shutdown()
        thread.join(10)
