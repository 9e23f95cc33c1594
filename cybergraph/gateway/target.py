"""Request targets that name the whole URL, as RFC 9112 has servers take them: `GET http://host/path HTTP/1.1`.

Only HTTP/1.1 has these; HTTP/2 writes the two parts apart.
"""

import re
from typing import Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

_WHOLE: Final = re.compile(rb"https?://([^/?#@\s]+)(/.*)?", re.IGNORECASE | re.DOTALL)


class OriginForm:
    """An application that is asked by path alone, whatever form the request had."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        await self._app(scope if scope["http_version"] == "2" else in_origin_form(scope), receive, send)


def in_origin_form(scope: Scope) -> Scope:
    """Give the same request with its target as a path. The host in a target counts, and not the one in the header.

    >>> scope = in_origin_form({"raw_path": b"http://a:80/x%20y", "headers": [(b"host", b"b")]})
    >>> scope["path"], scope["raw_path"], scope["headers"]
    ('/x y', b'/x%20y', [(b'host', b'a:80')])
    """
    if (found := _WHOLE.fullmatch(scope["raw_path"])) is None:
        return scope
    host, raw_path = found[1], found[2] or b"/"
    headers = [(b"host", host), *((name, value) for name, value in scope["headers"] if name != b"host")]
    return {**scope, "raw_path": raw_path, "path": unquote(raw_path.decode("latin-1")), "headers": headers}
