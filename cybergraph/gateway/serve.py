"""Run an ASGI application on a socket until it is told to stop."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, Final, cast

import uvicorn
from starlette.types import ASGIApp

from ..errors import PeerError
from .limits import MOST_HEAD_BYTES
from .patience import PatientProtocol
from .target import OriginForm

_AHEAD_BYTES: Final = 256 << 10
"""What the system holds of an answer, beside what is on its way."""
_BACKLOG: Final = 128
"""Connections that are accepted at once, before those that are too many are closed again."""
GRACE_S: Final = 2
"""Time that answers under way get to finish."""
_IDLE_S: Final = 60
"""Longer than `patience.HEAD_S`, which is what ends a connection without a request: one clock decides."""
_EVERYWHERE: Final = {"0.0.0.0": ("192.0.2.1",), "::": ("2001:db8::1", "192.0.2.1")}  # noqa: S104
"""Addresses that stand for all of this machine's, and addresses of documentation that the network would lead to."""


class GatewayServer(uvicorn.Server):
    """A server on its own socket, HTTP/1.1. `run()` blocks; `should_exit = True`, from any thread, stops it."""

    scheme: ClassVar = "http"
    protocol: ClassVar[type[asyncio.Protocol]] = PatientProtocol

    def __init__(self, app: ASGIApp, host: str, port: int, ready: Callable[[str], None]) -> None:
        """Bind the socket; port 0 takes a free one. Raises `PeerError` where that is not possible."""
        super().__init__(
            uvicorn.Config(
                OriginForm(app), http=self.protocol, ws="none", lifespan="off", log_config=None, log_level="critical",
                access_log=False, server_header=False, h11_max_incomplete_event_size=MOST_HEAD_BYTES, backlog=_BACKLOG,
                timeout_graceful_shutdown=GRACE_S, timeout_keep_alive=_IDLE_S,
                forwarded_allow_ips=["127.0.0.1", "::1"],
            )
        )  # fmt: skip
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            if not 0 <= port < 1 << 16:
                raise OSError("ports go from 0 to 65535")
            both = host == "::" and socket.has_dualstack_ipv6()
            self._socket = socket.create_server((host, port), family=family, dualstack_ipv6=both)
            # Head and body of an answer are two writes: without this a small body waits 40 ms for the reader's word.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # The system would hold megabytes, and say nothing of a slow reader until it has taken a third of them.
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _AHEAD_BYTES)
        except OSError as error:
            raise PeerError(
                f"cannot listen on {host}:{port}: {error}",
                hint="choose another with --listen HOST:PORT; port 0 is any",
            ) from error
        self.everywhere = host in _EVERYWHERE
        """Whether it listens on every address of this machine."""
        self.url = self._url(reachable(host))
        """Where programs elsewhere reach it, as far as that can be known here."""
        self._ready = ready

    def _url(self, host: str) -> str:
        shown = f"[{host}]" if ":" in host else host
        return f"{self.scheme}://{shown}:{self._socket.getsockname()[1]}"

    def serve_forever(self) -> None:
        """Serve until stopped. After Ctrl-C or SIGTERM, finishes cleanly and then raises the signal again."""
        self.run(sockets=[self._socket])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections, then say so."""
        await super().startup(sockets)
        self._ready(self.url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, let answers under way finish for a while, and end the rest."""
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            cast("Any", connection).transport.abort()
        await asyncio.sleep(0)  # in which they learn of it


def reachable(host: str) -> str:
    """Give an address of this machine that others can use, in place of one that stands for all; sends nothing.

    >>> reachable("127.0.0.1")
    '127.0.0.1'
    """
    for elsewhere in _EVERYWHERE.get(host, ()):
        family = socket.AF_INET6 if ":" in elsewhere else socket.AF_INET
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:  # where there is such a network
            probe.connect((elsewhere, 9))  # a datagram socket only looks up its own address
            found: str = probe.getsockname()[0]
            return found
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104


def serve(app: ASGIApp, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve `app` until Ctrl-C (raises `KeyboardInterrupt` after a clean stop) or SIGTERM.

    Gives the URL to `ready` once connections are accepted. Prints nothing.
    """
    GatewayServer(app, host, port, ready).serve_forever()
