"""HTTPS with HTTP/2, which other IPFS programs ask of servers on the open network, and HTTP/1.1 for who wants that."""

import asyncio
import socket
import ssl
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final

from cryptography import x509
from starlette.types import ASGIApp
from uvicorn import Config
from uvicorn.server import ServerState

from ..errors import BadReference, Refused
from . import patience
from .http2 import AHEAD_BYTES, Http2Protocol
from .limits import may_connect
from .patience import PatientProtocol
from .serve import GRACE_S, GatewayServer

_PAUSE_S: Final = 0.1
"""Wait after a connection could not be accepted."""


class Certificate:
    """A certificate and its private key, as two PEM files."""

    def __init__(self, cert_file: Path, key_file: Path) -> None:
        """Read both.

        Raises `Refused` for a key that anybody on this machine can read, `BadReference` for files that cannot be read
        or do not belong together.
        """
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["h2", "http/1.1"])
        try:
            if key_file.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
                raise Refused(
                    f"anybody on this machine can read or change the key {key_file}",
                    hint=f"chmod o-rw {key_file}; if others have had it, make another", path=str(key_file),
                )  # fmt: skip
            self.context.load_cert_chain(cert_file, key_file, password=_no_password)
            certificate = x509.load_pem_x509_certificate(cert_file.read_bytes())
        except Refused:
            raise
        except (OSError, ValueError) as error:  # an `SSLError` is an `OSError`
            raise BadReference(
                f"cannot use certificate {cert_file} with key {key_file}: {error}",
                hint="both are PEM files; the key has no password and belongs to the first certificate",
                path=str(cert_file),
            ) from error
        self.name = _first_name(certificate)
        """A host that the certificate is for, or nothing."""


def _no_password() -> bytes:
    raise ValueError("the key has a password")


def _first_name(certificate: x509.Certificate) -> str:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ""
    return next((name for name in names.get_values_for_type(x509.DNSName) if not name.startswith("*")), "")


class TlsProtocol(asyncio.Protocol):
    """A connection as it stands after its handshake: it becomes one of HTTP/2 or of HTTP/1.1, as was agreed on."""

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: asyncio.AbstractEventLoop
    ) -> None:
        self._config = config
        self._state = server_state
        self._app_state = app_state
        self._loop = _loop

    def connection_made(self, transport: Any) -> None:
        """Hand the connection over."""
        spoken: Any
        if transport.get_extra_info("ssl_object").selected_alpn_protocol() == "h2":
            spoken = Http2Protocol(self._config, self._state)
        else:
            spoken = PatientProtocol(self._config, self._state, self._app_state, self._loop)
            spoken.below = transport._ssl_protocol._transport  # noqa: SLF001  # the only way to it
        transport.set_protocol(spoken)
        spoken.connection_made(transport)
        # Behind this there is a second buffer, of what is encrypted already.
        transport.set_write_buffer_limits(high=AHEAD_BYTES)


class TlsServer(GatewayServer):
    """A server as `GatewayServer`, with TLS, HTTP/2 and HTTP/1.1."""

    scheme: ClassVar = "https"
    protocol: ClassVar = TlsProtocol

    def __init__(
        self, app: ASGIApp, host: str, port: int, ready: Callable[[str], None], certificate: Certificate
    ) -> None:
        """Bind the socket. Raises as `GatewayServer`."""
        super().__init__(app, host, port, ready)
        self._tls = certificate.context
        self._accepting: list[asyncio.Task[None]] = []
        self._arriving: dict[asyncio.Task[None], str] = {}
        """Handshakes under way, and where each comes from: only after one the connection is among the others."""
        if self.everywhere and certificate.name:
            self.url = self._url(certificate.name)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections, then say so."""
        self.servers = []
        self._accepting = [asyncio.create_task(self._accept(listening)) for listening in sockets or ()]
        self.started = True
        self._ready(self.url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See `GatewayServer`; handshakes under way end."""
        for task in (*self._accepting, *self._arriving):
            task.cancel()
        await super().shutdown(sockets)

    async def _accept(self, listening: socket.socket) -> None:
        """Take connections as they come, and close those that are too many before anything is computed for them."""
        loop = asyncio.get_running_loop()
        listening.settimeout(0)
        while True:
            try:
                connection, (host, *_) = await loop.sock_accept(listening)
            except OSError:  # no more descriptors, or a reader that has left already
                await asyncio.sleep(_PAUSE_S)
                continue
            others = [*patience.addresses(self.server_state.connections), *self._arriving.values()]
            if not may_connect(host, others):
                connection.close()
                continue
            task = loop.create_task(self._greet(connection))
            self._arriving[task] = host
            task.add_done_callback(self._arriving.pop)

    async def _greet(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):  # it speaks no TLS, or has left, or takes too long
            await loop.connect_accepted_socket(
                lambda: TlsProtocol(self.config, self.server_state, self.lifespan.state, loop), connection,
                ssl=self._tls, ssl_handshake_timeout=patience.HEAD_S, ssl_shutdown_timeout=GRACE_S,
            )  # fmt: skip
