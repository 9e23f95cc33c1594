"""The RPC client against a scripted server: every way a call can fail ends as one typed error, soon."""

import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import (
    AccessDenied,
    BadReference,
    BlockNotFound,
    CyberKVError,
    PeerMisbehaved,
    PeerUnreachable,
    RpcFailed,
    TierFull,
)
from cyberkv.cybergraph.peers.kubo import Credential, KuboPeer, KuboRpc, KuboUpload, Part, RpcAddress
from cyberkv.cybergraph.peers.kubo.rpc import MAX_LINE_BYTES, Multipart
from cyberkv.cybergraph.peers.line import Patience
from tests.wire.kubo_node import KuboNode, NodeServer

HASTY = Patience(connect_s=10, read_s=0.5, block_s=1.0)
CID = Cid.of(b"x", "raw", "sha2-256")
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"

Script = Callable[[socket.socket], None]


class Scripted(socketserver.ThreadingTCPServer):
    allow_reuse_address, daemon_threads = True, True

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script = script
        self.requests: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(socketserver.BaseRequestHandler):
    server: Scripted

    def handle(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (data := self.request.recv(4096)):
                return
            head += data
        self.server.requests.append(head)
        self.server.script(self.request)


@pytest.fixture
def serve() -> Iterator[Callable[[Script], Scripted]]:
    running: list[Scripted] = []

    def start(script: Script) -> Scripted:
        server = Scripted(script)
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        running.append(server)
        return server

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def saying(data: bytes) -> Script:
    return lambda connection: connection.sendall(data)


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def status(line: str, body: bytes = b"", **headers: str) -> bytes:
    lines = [
        f"HTTP/1.1 {line}",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def silent(connection: socket.socket) -> None:
    connection.recv(1)


def endless_line(connection: socket.socket) -> None:
    connection.sendall(CHUNKED + b"\r\n")
    for _ in range(64):
        connection.sendall(chunk(b"[" * (MAX_LINE_BYTES // 16)))


def dripping(connection: socket.socket) -> None:
    """One byte at a time, each within what counts as silence, for ever."""
    connection.sendall(CHUNKED + b"\r\n")
    with suppress(OSError):
        while True:
            connection.sendall(chunk(b" "))
            time.sleep(0.1)


def endless_lines(connection: socket.socket) -> None:
    connection.sendall(CHUNKED + b"\r\n")
    with suppress(OSError):
        while True:
            connection.sendall(chunk(b'{"Progress":7}\n' * 100))


def endless_headers(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    with suppress(OSError):
        while True:
            connection.sendall(b"X-More: and more\r\n")


PROGRESS = CHUNKED + b"\r\n" + chunk(b'{"Progress":1}\n')
ERROR_LINE = PROGRESS + chunk(b'{"Message":"gone","Type":"error"}\n') + b"0\r\n\r\n"
TRAILER = PROGRESS + b"0\r\nX-Stream-Error: half way\r\n\r\n"
ERROR = status("500 Internal Server Error", b'{"Message":"disk on fire","Code":0}')

FAILURES: dict[str, tuple[Script, type[CyberKVError], str]] = {
    "said in JSON": (saying(ERROR), RpcFailed, "disk on fire"),
    "said in text": (saying(status("404 Not Found", b"404 page not found\n")), RpcFailed, "404 page not found"),
    "forbidden": (saying(status("403 Forbidden", b"403 - Access Denied")), AccessDenied, "API.Authorizations"),
    "a redirect": (saying(status("307 Moved", Location="http://elsewhere/")), PeerMisbehaved, "redirects"),
    "a page": (saying(status("200 OK", b"<!doctype html><html>")), PeerMisbehaved, "no JSON"),
    "a number": (saying(status("200 OK", b"7\n")), PeerMisbehaved, "'7"),
    "deep JSON": (saying(status("200 OK", b"[" * 100_000)), PeerMisbehaved, "no JSON"),
    "an error line": (saying(ERROR_LINE), RpcFailed, "gone"),
    "an error trailer": (saying(TRAILER), RpcFailed, "half way"),
    "many trailers": (
        saying(PROGRESS + b"0\r\n" + b"X-More: and more\r\n" * 1000 + b"\r\n"),
        PeerMisbehaved,
        "does not speak HTTP",
    ),
    "a large trailer": (
        saying(PROGRESS + b"0\r\nX-More: " + b"x" * (1 << 20) + b"\r\n\r\n"),
        PeerMisbehaved,
        "does not speak HTTP",
    ),
    "dripping": (dripping, PeerUnreachable, "http://127.0.0.1"),
    "lines without end": (endless_lines, PeerMisbehaved, "lines without end"),
    "headers without end": (endless_headers, PeerMisbehaved, "does not speak HTTP"),
    "full": (
        saying(status("500 No", b'{"Message":"write x: no space left on device"}')),
        TierFull,
        "make room on the node",
    ),
    "cut in chunks": (saying(PROGRESS), PeerUnreachable, "inside an answer"),
    "cut in a length": (saying(status("200 OK", b'{"a":1}\n' * 9)[:-4]), PeerUnreachable, "inside an answer"),
    "cut between lines": (saying(status("200 OK", b'{"a":1}\n' * 9)[:-8]), PeerUnreachable, "inside an answer"),
    "silence": (silent, PeerUnreachable, "silent"),
    "no HTTP": (saying(b"SSH-2.0-OpenSSH_9\r\n\r\n"), PeerMisbehaved, "does not speak HTTP"),
    "a line without end": (endless_line, PeerMisbehaved, "without end"),
}


@pytest.mark.parametrize(("script", "error", "words"), FAILURES.values(), ids=FAILURES)
def test_each_kind_of_failure_is_one_typed_error(
    script: Script, error: type[CyberKVError], words: str, serve: Callable[[Script], Scripted]
) -> None:
    rpc = KuboRpc(RpcAddress.parse(serve(script).url), Credential.parse("bearer:swordfish"), patience=HASTY)
    with pytest.raises(error) as caught:
        list(rpc.lines("pin/add", str(CID)))
    text = f"{caught.value} {caught.value.hint}"
    assert words in text
    assert "swordfish" not in f"{text} {caught.value.data} {caught.value!r}"
    rpc.close()


ECHOES: dict[str, Callable[[bytes], bytes]] = {
    "in an error": lambda secret: status("500 No", b'{"Message":"you said ' + secret + b'"}'),
    "in a page": lambda secret: status("502 Bad Gateway", b"<p>" + b"x" * 110 + secret),
    "in no JSON": lambda secret: status("200 OK", b"x" * 70 + secret),
    "in a number": lambda secret: status("200 OK", b'"' + secret + b'"\n'),
    "in an error line": lambda secret: PROGRESS + chunk(b'{"Message":"' + secret + b'","Type":"error"}\n'),
    "in a trailer": lambda secret: PROGRESS + b"0\r\nX-Stream-Error: " + secret + b"\r\n\r\n",
    "in the status": lambda secret: status("403 " + secret.decode(), secret),
    "in no HTTP": lambda secret: secret + b"\r\n\r\n",
    "in a redirect": lambda secret: status("302 Found", Location="http://x/" + secret.decode()),
}
SECRETS = {
    "bearer:swordfish": ["swordfish", "Bearer swordfish"],
    "basic:me:swordfish": ["swordfish", "me:swordfish", "Basic bWU6c3dvcmRmaXNo"],
}


@pytest.mark.parametrize("echo", ECHOES)
@pytest.mark.parametrize(("secret", "said"), [(text, form) for text, forms in SECRETS.items() for form in forms])
def test_a_credential_that_comes_back_is_not_repeated(
    echo: str, secret: str, said: str, serve: Callable[[Script], Scripted]
) -> None:
    server = serve(saying(ECHOES[echo](said.encode())))
    rpc = KuboRpc(RpcAddress.parse(server.url), Credential.parse(secret), patience=HASTY)
    with pytest.raises(CyberKVError) as caught:
        list(rpc.lines("pin/add", str(CID)))
    shown = f"{caught.value} {caught.value.hint} {caught.value.data} {caught.value!r}"
    assert "wordfis" not in shown
    assert "c3dvcmRm" not in shown
    rpc.close()
    # The control: without the credential it is text like any other.
    if echo in ("in an error", "in a trailer"):
        rpc = KuboRpc(RpcAddress.parse(server.url), patience=HASTY)
        with pytest.raises(CyberKVError, match=r"wordfis|c3dvcmRm"):
            list(rpc.lines("pin/add", str(CID)))
        rpc.close()


def test_an_error_is_one_printable_line(serve: Callable[[Script], Scripted]) -> None:
    answer = status("500 No", b'{"Message":"a\\u001b[2Jb\\r\\nerror: c\\u202ed\\ud800e"}')
    rpc = KuboRpc(RpcAddress.parse(serve(saying(answer)).url))
    with pytest.raises(RpcFailed) as caught:
        rpc.json("version")
    assert str(caught.value.data["reason"]).isprintable()
    assert str(caught.value).endswith("a [2Jb  error: c d?e")
    rpc.close()


def test_a_body_may_take_longer_than_an_answer() -> None:
    def slowly() -> Iterator[bytes]:
        for _ in range(8):
            clock[0] += 0.8 * HASTY.block_s
            yield b"x"

    clock, node = [0.0], KuboNode()
    node.before = lambda *_: (200, b'{"a":1}\n')
    server = NodeServer(node)
    rpc = KuboRpc(RpcAddress.parse(server.url), patience=HASTY, clock=lambda: clock[0])
    assert list(rpc.lines("dag/import", body=Multipart(slowly()))) == [{"a": 1}]
    rpc.close()
    server.close()


PIN_LIES: dict[str, tuple[bytes, str]] = {
    "none": (b'{"Pins":[]}', "does not say that it pinned"),
    "another": (b'{"Pins":["' + str(Cid.of(b"y", "raw", "blake3")).encode() + b'"]}', "does not say that it pinned"),
    "a text that holds it": (b'{"Pins":"x' + str(CID).encode() + b'"}', "does not say that it pinned"),
    "a number": (b'{"Pins":7}', "does not say that it pinned"),
    "only progress": (b'{"Progress":1,"Bytes":"many"}', "does not say that it pinned"),
    "more than there is": (b'{"Progress":1}\n{"Progress":5}', "pins more blocks than"),
}


@pytest.mark.parametrize("lie", PIN_LIES)
def test_a_pin_is_believed_only_when_it_is_named(lie: str) -> None:
    node = KuboNode()
    answer, words = PIN_LIES[lie]
    node.before = lambda command, _: (200, answer) if command == "pin/add" else None
    server = NodeServer(node)
    rpc = KuboRpc(RpcAddress.parse(server.url))
    part = Part(CID, 1, [(CID, 1)], lambda *_: [(CID, b"x")])
    with pytest.raises(PeerMisbehaved, match=words):
        KuboUpload(rpc).add(part)
    node.before = lambda *_: None
    assert KuboUpload(rpc).add(part)  # the control
    rpc.close()
    server.close()


@pytest.mark.parametrize("answer", [b"{}", b'{"Keys":[]}', b'{"Keys":{}}', b'{"Keys":{"%s":7}}' % str(CID).encode()])
def test_a_list_of_pins_that_says_nothing_is_an_error(answer: bytes, serve: Callable[[Script], Scripted]) -> None:
    rpc = KuboRpc(RpcAddress.parse(serve(saying(status("200 OK", answer))).url))
    with pytest.raises(PeerMisbehaved, match="how it pins"):
        KuboUpload(rpc).pin_name(CID)
    rpc.close()


def test_a_sound_answer_comes_line_by_line(serve: Callable[[Script], Scripted]) -> None:
    server = serve(saying(CHUNKED + b"\r\n" + chunk(b'{"a":1}\n{"b"') + chunk(b":2}\n") + b"0\r\n\r\n"))
    rpc = KuboRpc(RpcAddress.parse(server.url), Credential.parse("basic:me:swordfish"))
    assert list(rpc.lines("pin/ls", "x y", options={"type": "recursive"})) == [{"a": 1}, {"b": 2}]
    rpc.close()
    (request,) = server.requests
    assert request.startswith(b"POST /api/v0/pin/ls?arg=x+y&type=recursive HTTP/1.1\r\n")
    assert b"Authorization: Basic bWU6c3dvcmRmaXNo" in request


def test_a_refusal_that_comes_before_the_body_is_sent_is_heard(serve: Callable[[Script], Scripted]) -> None:
    def refuse(connection: socket.socket) -> None:
        connection.sendall(status("403 Forbidden"))
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):  # a server drains a little, so that its answer is not lost with the rest
            pass

    rpc = KuboRpc(RpcAddress.parse(serve(refuse).url))
    with pytest.raises(AccessDenied):
        list(rpc.lines("dag/import", body=Multipart(bytes(1 << 16) for _ in range(256))))
    rpc.close()


def test_blocks_that_the_node_cannot_find_in_time_are_absent(serve: Callable[[Script], Scripted]) -> None:
    body = b'{"Message":"context deadline exceeded","Code":0,"Type":"error"}'
    with KuboPeer(serve(saying(status("500 Internal Server Error", body))).url) as peer, pytest.raises(BlockNotFound):
        list(peer.get_many([CID]))


@pytest.mark.parametrize(
    "text",
    ["", "ftp://host", "http://", "http://host/ipfs/x", "/ip4/1.2.3.4/udp/1", "/ip4/1.2.3.4/tcp/99999", "/", "x:y"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadReference):
        RpcAddress.parse(text)


def test_secrets_are_not_repeated() -> None:
    for text in ("swordfish", "bearer:", "bearer:sword fish", "basic:swordfish", "bearer:swordfish\n\x00"):
        with pytest.raises(BadReference) as caught:
            Credential.parse(text)
        assert "swordfish" not in f"{caught.value} {caught.value.data} {caught.value.hint}"
    with pytest.raises(BadReference) as caught:
        RpcAddress.parse("http://me:swordfish@host:5001")
    assert "swordfish" not in f"{caught.value} {caught.value.data} {caught.value.hint}"
    assert "swordfish" not in repr(Credential.parse("bearer:swordfish"))
