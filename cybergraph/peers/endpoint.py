"""Where a server that speaks HTTP listens."""

import http.client
import re
from dataclasses import dataclass
from typing import ClassVar, Self
from urllib.parse import urlsplit

from ..errors import BadReference


@dataclass(frozen=True)
class Endpoint:
    """Scheme, host and port. What kind of server it is, and what may stand behind the port, says the subclass."""

    kind: ClassVar[str]
    """What the text is called when it is unusable."""
    hint: ClassVar[str]
    login_hint: ClassVar[str]
    paths: ClassVar[re.Pattern[str]]

    scheme: str
    host: str
    port: int | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `http(s)://host[:port]` and one of the known paths. Raises `BadReference`."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise cls.unusable(text) from error
        if "@" in parts.netloc:
            raise BadReference(f"{cls.kind} with a password in it, for {parts.hostname}", hint=cls.login_hint)
        plain = cls.paths.fullmatch(parts.path) and not parts.query and not parts.fragment
        plain = plain and text.isprintable() and " " not in text
        if parts.scheme not in ("http", "https") or not parts.hostname or not plain:
            raise cls.unusable(text)
        return cls(parts.scheme, parts.hostname, port)

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port as they count, with the usual port filled in."""
        return self.scheme, self.host, self.port or {"http": 80, "https": 443}[self.scheme]

    @classmethod
    def unusable(cls, text: str) -> BadReference:
        """Build the error for a text that names no such server."""
        return BadReference(f"not {cls.kind}: {text!r:.120}", hint=cls.hint, got=text[:120])

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Build a connection that is not open yet."""
        kind = http.client.HTTPSConnection if self.scheme == "https" else http.client.HTTPConnection
        return kind(self.host, self.port, timeout=timeout_s)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + (f":{self.port}" if self.port is not None else "")
