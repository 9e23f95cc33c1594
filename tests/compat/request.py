"""One request over HTTP, and its whole answer."""

import http.client
import ssl
from pathlib import Path
from typing import NamedTuple


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    """By names in small letters."""
    body: bytes
    whole: bool
    """False where the connection ended in the middle of the body."""


def ask(
    url: str, target: str, method: str = "GET", headers: dict[str, str] | None = None, trusted: Path | None = None
) -> Answer:
    """Ask once, on a connection of its own; over https with the certificate `trusted`."""
    scheme, _, host = url.partition("://")
    connection = http.client.HTTPConnection(host, timeout=60)
    if scheme == "https":
        context = ssl.create_default_context(cafile=trusted)
        connection = http.client.HTTPSConnection(host, timeout=60, context=context)
    try:
        connection.request(method, target, headers=headers or {})
        answer = connection.getresponse()
        try:
            body, whole = answer.read(), True
        except http.client.IncompleteRead as cut:
            body, whole = cut.partial, False
        return Answer(answer.status, {key.lower(): value for key, value in answer.getheaders()}, body, whole)
    finally:
        connection.close()
