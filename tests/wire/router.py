"""A server of delegated routing over plain sockets, as helpful or as harmful as a test wants."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tests.wire.liar import in_thread

LINES, JSON = "application/x-ndjson", "application/json"


def gateway_record(url: str, **more: object) -> dict[str, object]:
    """The record of a gateway at `url`, which is of an address and not of a name."""
    parts = urlsplit(url)
    kind = "dns4" if parts.hostname == "localhost" else "ip4"
    address = f"/{kind}/{parts.hostname}/tcp/{parts.port}/{'tls/' if parts.scheme == 'https' else ''}http"
    return {
        "Schema": "peer",
        "ID": "12D3KooW",
        "Addrs": [address],
        "Protocols": ["transport-ipfs-gateway-http"],
        **more,
    }


class Asked(BaseHTTPRequestHandler):
    """One request to the router, and the means to answer it."""

    protocol_version = "HTTP/1.1"
    server: "RouterServer"

    def do_GET(self) -> None:
        self.server.targets.append(self.path)
        self.server.accepted.append(self.headers["Accept"])
        self.server.behave(self)

    def send(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def begin(self, content_type: str) -> None:
        """Open an answer that ends with the connection."""
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def log_message(self, *_: object) -> None: ...


class RouterServer(ThreadingHTTPServer):
    def __init__(self, behave: Callable[[Asked], None]) -> None:
        self.behave = behave
        self.targets: list[str] = []
        self.accepted: list[str] = []
        self.ended = threading.Event()
        super().__init__(("127.0.0.1", 0), Asked)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that hangs up is the point of some tests."""


@contextmanager
def routing(behave: Callable[[Asked], None]) -> Iterator[RouterServer]:
    """Run the router in a thread until the block ends."""
    with RouterServer(behave) as server, in_thread(server, server.ended):
        yield server


def in_lines(records: Sequence[object]) -> Callable[[Asked], None]:
    return lambda asked: asked.send(200, LINES, b"".join(json.dumps(each).encode() + b"\n" for each in records))


def in_json(records: Sequence[object]) -> Callable[[Asked], None]:
    return lambda asked: asked.send(200, JSON, json.dumps({"Providers": records}).encode())
