"""Run an ASGI application on a socket until it is told to stop."""

import socket
from collections.abc import Callable
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from ..errors import PeerError
from .patience import PatientProtocol

_GRACE_S: Final = 2
"""Time that answers under way get to finish."""
_MOST_CONNECTIONS: Final = 256


class GatewayServer(uvicorn.Server):
    """A server on its own socket. `run()` blocks; `should_exit = True`, from any thread, stops it."""

    def __init__(self, app: ASGIApp, host: str, port: int, ready: Callable[[str], None]) -> None:
        """Bind the socket; port 0 takes a free one. Raises `PeerError` where that is not possible."""
        super().__init__(
            uvicorn.Config(
                app, http=PatientProtocol, ws="none", lifespan="off", log_config=None, log_level="critical",
                access_log=False, server_header=False, limit_concurrency=_MOST_CONNECTIONS,
                timeout_graceful_shutdown=_GRACE_S,
            )
        )  # fmt: skip
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            if not 0 <= port < 1 << 16:
                raise OSError("ports go from 0 to 65535")
            self._socket = socket.create_server((host, port), family=family)
            # Head and body of an answer are two writes: without this a small body waits 40 ms for the reader's word.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise PeerError(
                f"cannot listen on {host}:{port}: {error}",
                hint="choose another with --listen HOST:PORT; port 0 is any",
            ) from error
        shown = f"[{host}]" if family == socket.AF_INET6 else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}"
        self._ready = ready

    def serve_forever(self) -> None:
        """Serve until stopped. After Ctrl-C or SIGTERM, finishes cleanly and then raises the signal again."""
        self.run(sockets=[self._socket])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections, then say so."""
        await super().startup(sockets)
        self._ready(self.url)


def serve(app: ASGIApp, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve `app` until Ctrl-C (raises `KeyboardInterrupt` after a clean stop) or SIGTERM.

    Gives the URL to `ready` once connections are accepted. Prints nothing.
    """
    GatewayServer(app, host, port, ready).serve_forever()
