"""A dishonest gateway for the demo: passes everything on, but one leaf with one bit changed."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import urlsplit

from ..cybergraph.cid import Cid

_KEPT_HEADERS: Final = ("content-type", "etag")
_PATIENCE_S: Final = 60
RAW: Final = "application/vnd.ipld.raw"


@contextmanager
def tampering(upstream: str, leaf: Cid) -> Iterator[str]:
    """Stand before the gateway at `upstream` and change `leaf` in every answer; give the URL."""
    with _Tamperer(upstream, leaf) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class _Tamperer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, upstream: str, leaf: Cid) -> None:
        self.upstream = urlsplit(upstream)
        _, _, self.leaf = self.ask(f"/ipfs/{leaf}?format=raw", RAW)
        middle = len(self.leaf) // 2
        self.altered = self.leaf[:middle] + bytes((self.leaf[middle] ^ 1,)) + self.leaf[middle + 1 :]
        super().__init__(("127.0.0.1", 0), _Handler)

    def ask(self, target: str, accept: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.upstream.hostname or "", self.upstream.port, timeout=_PATIENCE_S)
        try:
            connection.request("GET", target, headers={"Accept": accept})
            answer = connection.getresponse()
            headers = {name: value for name, value in answer.getheaders() if name.lower() in _KEPT_HEADERS}
            return answer.status, headers, answer.read()
        finally:
            connection.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Tamperer

    def do_GET(self) -> None:
        status, headers, body = self.server.ask(self.path, self.headers.get("accept", ""))
        body = body.replace(self.server.leaf, self.server.altered)
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(body)
        except ConnectionError:
            self.close_connection = True  # the reader has seen enough

    def log_message(self, *_: object) -> None:
        """Stay silent."""
