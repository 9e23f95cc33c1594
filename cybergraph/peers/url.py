"""The address of an HTTP gateway.

>>> str(GatewayUrl.parse("http://127.0.0.1:8480/ipfs/bafkqaaa"))
'http://127.0.0.1:8480'
>>> str(GatewayUrl.parse("https://Gateway.example/"))
'https://gateway.example'
"""

import http.client
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from ..errors import BadReference


@dataclass(frozen=True)
class GatewayUrl:
    """Scheme, host and port. A gateway answers at `/ipfs/<cid>` below them."""

    scheme: str
    host: str
    port: int | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `http(s)://host[:port]`, with or without `/ipfs/<cid>`. Raises `BadReference`."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise _unusable(text) from error
        if "@" in parts.netloc:
            raise BadReference(
                f"a gateway URL with a password, for {parts.hostname}",
                hint="gateways are asked without credentials",
            )
        path = parts.path.strip("/").split("/")
        plain = path in ([""], ["ipfs"]) or (len(path) == 2 and path[0] == "ipfs")
        if parts.scheme not in ("http", "https") or not parts.hostname or not plain or parts.query or parts.fragment:
            raise _unusable(text)
        return cls(parts.scheme, parts.hostname, port)

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Build a connection that is not open yet."""
        kind = http.client.HTTPSConnection if self.scheme == "https" else http.client.HTTPConnection
        return kind(self.host, self.port, timeout=timeout_s)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + (f":{self.port}" if self.port is not None else "")


def _unusable(text: str) -> BadReference:
    return BadReference(
        f"not the URL of a gateway: {text!r:.120}",
        hint="write http://host:port or https://host",
        got=text[:120],
    )
