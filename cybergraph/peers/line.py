"""One keep-alive connection to one HTTP gateway, with every read bounded in bytes and time.

`http.client` bounds neither: a server may send one byte a minute for ever, or headers without end. So the response
reads its socket through a `Meter` that holds a deadline and an allowance, both renewed for each block.
"""

import http.client
import io
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from ..errors import CyberKVError, PeerMisbehaved, PeerUnreachable
from .url import GatewayUrl

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
        self._left_bytes = most_bytes + SLACK_BYTES

    def receive(self, raw: io.RawIOBase, sock: socket.socket, buffer: memoryview) -> int:
        """Read once from `raw`, the unbuffered file of `sock`."""
        left_s = self._deadline_s - self._clock()
        if left_s <= 0:
            raise PeerUnreachable(f"{self._name} took over {self._patience.block_s:g} s for one block", peer=self._name)
        if not self._left_bytes:
            raise PeerMisbehaved(f"{self._name} sends more bytes than any block has", peer=self._name)
        sock.settimeout(min(self._patience.read_s, left_s))
        got = raw.readinto(buffer[: self._left_bytes]) or 0
        self._left_bytes -= got
        return got


class _MeteredFile(io.RawIOBase):
    def __init__(self, sock: socket.socket, meter: Meter) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._meter = meter

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        return self._meter.receive(self._raw, self._sock, memoryview(buffer))

    def close(self) -> None:
        self._raw.close()
        super().close()


class Line:
    """A connection that is opened on first use and again after any trouble."""

    def __init__(self, url: GatewayUrl, patience: Patience, clock: Callable[[], float]) -> None:
        self._url = url
        self._patience = patience
        self._http: http.client.HTTPConnection | None = None
        self._socket: socket.socket | None = None
        self._answer: http.client.HTTPResponse | None = None
        self._used = False
        self._ended = False
        self.meter = Meter(str(url), patience, clock)

    def ask(self, target: str, accept: str, most_bytes: int) -> http.client.HTTPResponse:
        """Send one GET and read the status and headers. The body is the caller's to read, within the meter."""
        self.meter.renew(most_bytes)
        with self.guarded():
            try:
                return self._send(target, accept)
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                if not self._used:
                    raise
                self.close()  # the server dropped an idle connection, which it may do at any time: not its answer
                return self._send(target, accept)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Name what goes wrong inside, and drop the connection: what else it holds belongs to no request."""
        try:
            with naming(str(self._url)):
                yield
        except BaseException:
            self.close()
            raise

    def _send(self, target: str, accept: str) -> http.client.HTTPResponse:
        if self._ended:
            raise PeerUnreachable(f"{self._url} was closed here", peer=str(self._url))
        if self._http is None:
            self._http = self._url.connection(self._patience.connect_s)
            self._http.response_class = self._response  # type: ignore[assignment]
        if self._http.sock is None:
            self._socket = self._connect(self._http)
        self._http.request("GET", target, headers={"Accept": accept, "User-Agent": "cyberkv"})
        answer = self._http.getresponse()
        self._used = True
        return answer

    def _connect(self, connection: http.client.HTTPConnection) -> socket.socket:
        connection.connect()
        connection.sock.settimeout(self._patience.read_s)
        return connection.sock

    def _response(self, sock: socket.socket, method: str) -> http.client.HTTPResponse:
        answer = http.client.HTTPResponse(sock, method=method)
        answer.fp.close()
        answer.fp = io.BufferedReader(_MeteredFile(sock, self.meter), 64 << 10)
        self._answer = answer
        return answer

    def end(self) -> None:
        """Fail what is under way in another thread, and everything after it. That thread, or `close`, cleans up."""
        self._ended = True
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
