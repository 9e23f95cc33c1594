"""One request of an HTTP/2 connection, as applications know it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from h2.events import RequestReceived
from h2.exceptions import ProtocolError
from starlette.types import Message, Scope


class Answer:
    """How far an answer is."""

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        """How much longer it may wait for its reader, who earns more by taking some of it."""
        self.is_asked = False
        """The request is whole."""
        self.is_bare = False
        """It has no body."""
        self.is_over = False
        self._left = asyncio.Event()
        self._is_read = False

    @property
    def has_left(self) -> bool:
        """Whether nobody waits for it any more."""
        return self._left.is_set()

    def leave(self) -> None:
        """Learn that nobody waits for it."""
        self._left.set()

    async def receive(self) -> Message:
        """Give the application the request's body, which is none, and then the word that the reader has left."""
        if self._is_read:
            await self._left.wait()
            return {"type": "http.disconnect"}
        self._is_read = True
        return {"type": "http.request", "body": b"", "more_body": False}


@contextmanager
def noticing_the_end() -> Iterator[None]:
    """Turn the protocol's word for a request that is over into the `OSError` that applications know."""
    try:
        yield
    except ProtocolError as error:
        raise ConnectionResetError("the reader has left") from error


def scope_of(request: RequestReceived, client: tuple[str, int] | None, server: Any) -> Scope | None:
    """Say what is asked for, as applications read it; None where a part is missing."""
    headers = [(bytes(name), bytes(value)) for name, value in request.headers or ()]
    pseudo = {name: value for name, value in headers if name.startswith(b":")}
    if not {b":method", b":path"} <= pseudo.keys():
        return None
    raw_path, _, query = pseudo[b":path"].partition(b"?")
    plain = [(name, value) for name, value in headers if not name.startswith(b":")]
    if b":authority" in pseudo and not any(name == b"host" for name, _ in plain):
        plain.insert(0, (b"host", pseudo[b":authority"]))
    return {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "2", "scheme": "https",
        "method": pseudo[b":method"].decode("latin-1").upper(), "path": unquote(raw_path.decode("latin-1")),
        "raw_path": raw_path, "query_string": query, "root_path": "", "headers": plain, "client": client,
        "server": tuple(server[:2]) if server else None, "state": {},
    }  # fmt: skip
