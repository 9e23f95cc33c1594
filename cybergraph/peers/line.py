"""One keep-alive connection to one HTTP gateway, with every read bounded in bytes and time.

`http.client` bounds neither: a server may send one byte a minute for ever, or headers without end. So the response
reads its socket through a `Meter` that holds a deadline and an allowance, both renewed for each block.
"""

import http.client
import io
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ..cid import Buffer
from ..errors import CyberKVError, PeerMisbehaved, PeerUnreachable, Refused
from .reach import ANYWHERE, Reach

SLACK_BYTES: Final = 128 << 10
"""Headers, chunk framing and read-ahead, beside the payload itself."""


@dataclass(frozen=True)
class Patience:
    """How long to wait, in seconds, and how often to come back."""

    connect_s: float = 10.0
    read_s: float = 30.0
    """Longest silence."""
    block_s: float = 120.0
    """Longest time for one block, however steadily its bytes trickle."""
    retries: int = 2
    """Further tries after the peer said it is busy (429, 503)."""
    wait_s: float = 5.0
    """Longest wait before such a try. A peer that asks for more counts as unreachable."""


class Meter:
    """Deadline and byte allowance of the block being read."""

    def __init__(self, name: str, patience: Patience, clock: Callable[[], float]) -> None:
        self._name = name
        self._patience = patience
        self._clock = clock
        self._deadline_s = 0.0
        self._left_bytes = 0

    def renew(self, most_bytes: int) -> None:
        """Start the next block."""
        self._deadline_s = self._clock() + self._patience.block_s
        self.allow(most_bytes)

    def allow(self, most_bytes: int) -> None:
        """Let another `most_bytes` come before the same deadline."""
        self._left_bytes = most_bytes + SLACK_BYTES

    def receive(self, sock: socket.socket, buffer: memoryview) -> int:
        """Read once from `sock`."""
        left_s = self._deadline_s - self._clock()
        if left_s <= 0:
            raise PeerUnreachable(f"{self._name} took over {self._patience.block_s:g} s for one block", peer=self._name)
        if not self._left_bytes:
            raise PeerMisbehaved(f"{self._name} sends more bytes than any block has", peer=self._name)
        if (wait_s := min(self._patience.read_s, left_s)) != sock.gettimeout():  # setting it is a system call
            sock.settimeout(wait_s)
        got = sock.recv_into(buffer[: self._left_bytes])
        self._left_bytes -= got
        return got


class _MeteredFile(io.RawIOBase):
    def __init__(self, sock: socket.socket, meter: Meter) -> None:
        self._sock = sock
        self._hold = sock.makefile("rb", buffering=0)  # an open file keeps the socket open, too
        self._meter = meter

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        return self._meter.receive(self._sock, memoryview(buffer))

    def close(self) -> None:
        self._hold.close()
        super().close()


class Address(Protocol):
    """Where a line leads. Its text names the peer in messages."""

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Build a connection that is not open yet."""


class Answer(http.client.HTTPResponse):
    """A response that keeps its trailers, by which a server tells of an error in mid-stream."""

    def __init__(self, sock: socket.socket, method: str | None = None) -> None:
        super().__init__(sock, method=method)
        self.trailers: dict[str, str] = {}

    def _read_and_discard_trailer(self) -> None:  # `http.client` has no other door to them
        self.trailers = {name.lower(): value for name, value in http.client.parse_headers(self.fp).items()}


class Body(io.RawIOBase):
    """The body of an answer as a plain file, in which an early end is `IncompleteRead` and not an end."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def readable(self) -> bool:
        """Say yes."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Read once and give the count, 0 at the end. Raises `IncompleteRead`."""
        if len(buffer) > io.DEFAULT_BUFFER_SIZE:  # the inside of a leaf: straight to where it belongs
            count = self._answer.readinto(buffer)
        else:
            data = self._answer.read1(len(buffer))  # gives what is there, where `readinto` waits for all of it
            count = len(data)
            buffer[:count] = data
        if not count and self._answer.length:
            raise http.client.IncompleteRead(b"", self._answer.length)
        return count


class Line:
    """A connection that is opened on first use and again after any trouble."""

    def __init__(self, url: Address, patience: Patience, clock: Callable[[], float], reach: Reach = ANYWHERE) -> None:
        self._url = url
        self._patience = patience
        self._reach = reach
        self._http: http.client.HTTPConnection | None = None
        self._socket: socket.socket | None = None
        self._answer: Answer | None = None
        self._used = False
        self._ended = False
        self._hung_up = False
        self.meter = Meter(str(url), patience, clock)

    def ask(
        self,
        target: str,
        headers: Mapping[str, str],
        most_bytes: int,
        *,
        method: str = "GET",
        body: Iterable[Buffer] | None = None,
    ) -> Answer:
        """Send one request and read the status and headers. The answer's body is the caller's, within the meter.

        A body goes out in chunks as it is made, over a fresh connection, and never twice.
        """
        self._hung_up = False
        if body is not None:
            self.close()
        self.meter.renew(most_bytes)
        with self.guarded():
            try:
                return self._send(method, target, headers, body)
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                if not self._used or self._hung_up:
                    raise
                self.close()  # the server dropped an idle connection, which it may do at any time: not its answer
                return self._send(method, target, headers, body)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Name what goes wrong inside, and drop the connection: what else it holds belongs to no request."""
        try:
            with naming(str(self._url)):
                yield
        except BaseException:
            self.close()
            raise

    def _send(self, method: str, target: str, headers: Mapping[str, str], body: Iterable[Buffer] | None) -> Answer:
        if self._ended:
            raise PeerUnreachable(f"{self._url} was closed here", peer=str(self._url))
        if self._http is None:
            self._http = self._url.connection(self._patience.connect_s)
            self._http.response_class = self._response  # type: ignore[assignment]
            self._http._create_connection = self._dial  # type: ignore[attr-defined]  # noqa: SLF001  # the only way in
        if self._http.sock is None:
            self._socket = self._connect(self._http)
        try:
            self._http.request(method, target, body, {"User-Agent": "cyberkv", **headers})
        except (BrokenPipeError, ConnectionResetError):
            if body is None:
                raise  # else it stopped reading, and its answer, if one came, says why
        answer = self._http.getresponse()
        self._used = True
        return answer  # type: ignore[return-value]  # made by `_response`

    def _dial(self, address: tuple[str, int], timeout_s: float, _source: None) -> socket.socket:
        """Connect as `socket.create_connection` does, on a socket that can be hung up meanwhile.

        The name is resolved once, and it is the address connected to that must be within reach: so a name that stands
        for a public address at one moment and for a private one at the next leads nowhere.
        """
        refused: Exception = OSError(f"{address[0]} has no address")
        for family, kind, protocol, _, where in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
            if self._ended or self._hung_up:
                raise PeerUnreachable(f"{self._url} was given up", peer=str(self._url))
            if not self._reach.admits(address[0], str(where[0])):
                refused = Refused(
                    f"{self._url} leads to {where[0]}, which is no public address, and was not named by you",
                    hint=f"if it is meant, give it in --from, or --allow-host {address[0]}", peer=str(self._url),
                )  # fmt: skip
                continue
            sock = self._socket = socket.socket(family, kind, protocol)
            sock.settimeout(timeout_s)
            try:
                sock.connect(where)
            except OSError as error:
                sock.close()
                refused = error
            else:
                return sock
        raise refused

    def _connect(self, connection: http.client.HTTPConnection) -> socket.socket:
        connection.connect()
        connection.sock.settimeout(self._patience.read_s)
        return connection.sock

    def _response(self, sock: socket.socket, method: str) -> Answer:
        answer = Answer(sock, method=method)
        answer.fp.close()
        answer.fp = io.BufferedReader(_MeteredFile(sock, self.meter), 64 << 10)
        self._answer = answer
        return answer

    def end(self) -> None:
        """Fail what is under way in another thread, and everything after it. That thread, or `close`, cleans up."""
        self._ended = True
        self.hang_up()

    def hang_up(self) -> None:
        """Fail what is under way in another thread; the next request opens a new connection."""
        self._hung_up = True
        _hang_up(self._socket)

    def close(self) -> None:
        """Drop the connection; the next request opens another."""
        connection, answer, sock = self._http, self._answer, self._socket
        self._http = self._answer = self._socket = None
        self._used = False
        _hang_up(sock)
        if answer is not None:
            answer.close()  # it holds the socket open, whatever happens to the connection
        if connection is not None:
            connection.close()


def _hang_up(sock: socket.socket | None) -> None:
    if sock is not None:
        with suppress(OSError):  # the peer was quicker
            sock.shutdown(socket.SHUT_RDWR)


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Turn what the socket and HTTP layers raise into the error tree."""
    try:
        yield
    except CyberKVError:
        raise
    except TimeoutError as error:
        raise PeerUnreachable(f"{name} is silent", hint="try again, or another --from", peer=name) from error
    except http.client.IncompleteRead as error:
        raise PeerUnreachable(f"{name} closed the connection inside an answer", peer=name) from error
    except OSError as error:
        raise PeerUnreachable(
            f"{name} cannot be reached: {error}", hint="is it running, and is the address right?", peer=name
        ) from error
    except (http.client.HTTPException, ValueError) as error:
        raise PeerMisbehaved(f"{name} does not speak HTTP: {error!r:.80}", peer=name) from error
