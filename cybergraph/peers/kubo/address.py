"""Where a Kubo node's RPC listens, and what opens it.

>>> str(RpcAddress.parse("/ip4/127.0.0.1/tcp/5001"))
'http://127.0.0.1:5001'
>>> str(RpcAddress.parse("/dns/node.example/tcp/443/https"))
'https://node.example:443'
>>> str(RpcAddress.parse("https://node.example/api/v0"))
'https://node.example'
>>> Credential.parse("bearer:secret")
Credential(kind='bearer')
"""

import re
from base64 import b64decode, b64encode
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self

from ...errors import BadReference
from ..endpoint import Endpoint

DEFAULT_ADDRESS: Final = "http://127.0.0.1:5001"
"""Where a node's RPC listens unless it is told otherwise."""

_HOSTS: Final = ("ip4", "ip6", "dns", "dns4", "dns6")


@dataclass(frozen=True)
class Credential:
    """A bearer token, or a user with a password. Its text shows neither."""

    kind: str
    header: str = field(repr=False)
    """Value of the `Authorization` header."""

    def hidden_in(self, text: str) -> str:
        """Put `…` where `text` repeats what this keeps secret.

        >>> Credential.parse("basic:me:swordfish").hidden_in("no swordfish here, nor bWU6c3dvcmRmaXNo")
        'no … here, nor …'
        """
        secret = self.header.partition(" ")[2] or self.header
        secrets = [secret]
        if self.header.startswith("Basic "):
            with suppress(ValueError):
                pair = b64decode(secret).decode()
                secrets += [pair, pair.partition(":")[2]]
        for each in filter(None, secrets):
            text = text.replace(each, "…")
        return text

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `bearer:TOKEN` or `basic:USER:PASSWORD`, the form of Kubo's `API.Authorizations`.

        Raises `BadReference`, which does not repeat the text.
        """
        kind, _, secret = text.strip().partition(":")
        usable = secret.isascii() and secret.isprintable() and " " not in secret
        if kind == "bearer" and secret and usable:
            return cls(kind, f"Bearer {secret}")
        if kind == "basic" and ":" in secret and secret.isprintable():
            return cls(kind, "Basic " + b64encode(secret.encode()).decode())
        raise BadReference(
            "not a credential for a Kubo node",
            hint="write bearer:TOKEN or basic:USER:PASSWORD, as in API.Authorizations",
        )


@dataclass(frozen=True)
class RpcAddress(Endpoint):
    """The RPC answers at `/api/v0`, which may be part of the text that names it."""

    kind = "the address of a Kubo node's RPC"
    hint = "write http://host:5001 or /ip4/127.0.0.1/tcp/5001"
    login_hint = "put it in a file or the environment, where no process list shows it"
    paths = re.compile(r"(?:/api/v0)?/*")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a URL, or a multiaddr such as `/ip4/127.0.0.1/tcp/5001`. Raises `BadReference`."""
        if not text.startswith("/"):
            return super().parse(text)
        parts = text.strip("/").split("/")
        scheme = parts[4] if len(parts) == 5 else "http"
        sound = len(parts) in (4, 5) and parts[0] in _HOSTS and parts[2] == "tcp" and scheme in ("http", "https")
        if not sound or not parts[3].isdecimal() or not 0 < int(parts[3]) < 1 << 16:
            raise cls.unusable(text)
        return cls(scheme, parts[1], int(parts[3]))
