"""A Kubo node's RPC in memory, as far as an upload needs it, with the moods of a real one."""

import io
import json
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from cyberkv.cybergraph.car import read_car
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.nodes import links

Answer = tuple[int, bytes]


def failed(message: str, status: int = 500) -> Answer:
    return status, json.dumps({"Message": message, "Code": 0, "Type": "error"}).encode()


@lru_cache(4096)
def _below(data: bytes) -> tuple[Cid, ...]:
    return tuple(links(data))


class KuboNode:
    """Blocks and recursive pins, and what it was asked."""

    def __init__(self) -> None:
        self.blocks: dict[Cid, bytes] = {}
        self.pins: dict[Cid, str] = {}
        self.calls: list[tuple[str, str]] = []
        """Command and first argument of each call."""
        self.lacks: set[str] = set()
        """Commands of a later version."""
        self.names_pins = True
        self.before: Callable[[str, str], Answer | None] = lambda command, arg: None
        """Answers a call in place of the node, if it likes."""
        self.on_import: Callable[[bool], None] = lambda pinned: None
        """Called after each import, with whether its root is pinned."""

    def collect(self) -> None:
        """Do what `repo/gc` does."""
        kept = {cid for root in self.pins for cid in self._walk(root) if cid in self.blocks}
        self.blocks = {cid: data for cid, data in self.blocks.items() if cid in kept}

    def count(self, command: str) -> int:
        return sum(each == command for each, _ in self.calls)

    def answer(self, command: str, arg: str, options: dict[str, str], body: bytes) -> Answer:
        self.calls.append((command, arg))
        if instead := self.before(command, arg):
            return instead
        if command in self.lacks:
            return 404, b"404 page not found\n"
        verb = getattr(self, command.replace("/", "_"))
        return verb(Cid.parse(arg) if arg else None, options, body)  # type: ignore[no-any-return]

    def dag_import(self, _: Cid, options: dict[str, str], body: bytes) -> Answer:
        reader = read_car(io.BytesIO(body[body.index(b"\r\n\r\n") + 4 : body.rindex(b"\r\n--")]))
        self.blocks.update(reader)
        pinned = options["pin-roots"] == "true"
        lost = [cid for root in reader.roots for cid in self._walk(root) if cid not in self.blocks]
        if pinned and not lost:
            self.pins.update(dict.fromkeys(reader.roots, ""))
        self.on_import(pinned)
        told = {"Root": {"Cid": {"/": str(reader.roots[0])}, "PinErrorMsg": "not found" if lost else ""}}
        return 200, json.dumps(told).encode() if pinned else b""

    def pin_add(self, cid: Cid, options: dict[str, str], _: bytes) -> Answer:
        self.pins.pop(cid, None)
        walked = list(self._walk(cid))
        if lost := [each for each in walked if each not in self.blocks]:
            return failed(f"block was not found locally (offline): ipld: could not find {lost[0]}")
        self.pins[cid] = options.get("name", "")
        size_bytes = sum(len(self.blocks[each]) for each in walked)
        lines = [{"Progress": 1}, {"Progress": len(walked), "Bytes": size_bytes}, {"Pins": [str(cid)]}]
        return 200, b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    def pin_ls(self, cid: Cid | None, _options: dict[str, str], _: bytes) -> Answer:
        if cid is None:
            lines = [{"Cid": str(each), "Type": "recursive", "Name": name} for each, name in self.pins.items()]
            return 200, b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        if cid not in self.pins:
            return failed(f"path '{cid}' is not pinned")
        named = {"Name": self.pins[cid]} if self.names_pins and self.pins[cid] else {}
        return 200, json.dumps({"Keys": {str(cid): {"Type": "recursive", **named}}}).encode()

    def pin_rm(self, cid: Cid, _options: dict[str, str], _: bytes) -> Answer:
        return (200, b"{}") if self.pins.pop(cid, None) is not None else failed("not pinned or pinned indirectly")

    def pin_update(self, cid: Cid, options: dict[str, str], _: bytes) -> Answer:
        if cid not in self.pins:
            return failed("'from' cid was not recursively pinned already")
        new = Cid.parse(options["to"])
        if any(each not in self.blocks for each in set(self._walk(new)) - set(self._walk(cid))):
            return failed("ipld: could not find it")
        self.pins[new] = self.pins[cid]
        return 200, b"{}"

    def provide_once(self, _: Cid, _options: dict[str, str], _body: bytes) -> Answer:
        return 200, b'{"Queued":"x"}\n'

    routing_provide = provide_once

    def _walk(self, cid: Cid) -> Iterator[Cid]:
        seen, waiting = {cid}, [cid]
        while waiting:
            yield (here := waiting.pop())
            below = _below(self.blocks[here]) if here.codec == "dag-cbor" and here in self.blocks else ()
            waiting += [each for each in dict.fromkeys(below) if each not in seen]
            seen.update(below)


class NodeServer(ThreadingHTTPServer):
    """Serves a node on a free port until it is closed."""

    daemon_threads = True

    def __init__(self, node: KuboNode) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.node = node
        threading.Thread(target=self.serve_forever, args=(0.02,)).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: NodeServer

    def do_POST(self) -> None:
        parts = urlsplit(self.path)
        words = parse_qs(parts.query)
        args = words.pop("arg", [""])
        options = {name: values[-1] for name, values in words.items()} | {"to": args[-1]}
        chunked = self.headers["Transfer-Encoding"]
        body = b"".join(self._chunks()) if chunked else self.rfile.read(int(self.headers["Content-Length"] or 0))
        status, data = self.server.node.answer(parts.path.removeprefix("/api/v0/"), args[0], options, body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _chunks(self) -> Iterator[bytes]:
        while size_bytes := int(self.rfile.readline(), 16):
            yield self.rfile.read(size_bytes)
            self.rfile.readline()
        self.rfile.readline()

    def log_message(self, *_: object) -> None:
        pass
