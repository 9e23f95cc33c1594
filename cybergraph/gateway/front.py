"""What stands before the gateway in a server: limits, counters, and two addresses for whoever runs it."""

from collections.abc import Iterable
from typing import Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import CyberKVError
from .content import Content
from .limits import Limited, is_local
from .metrics import MEDIA_TYPE, Counted, Metrics
from .refusal import FOREIGN, REFUSED

_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


def guarded(app: ASGIApp, content: Content, metrics: Metrics, names: Iterable[str] = ()) -> ASGIApp:
    """Put limits and counters around the gateway, and `/healthz` and `/metrics` beside it.

    `/metrics` is for programs on this machine that ask for it by a loopback address, `localhost` or one of `names`; to
    anybody else, and to whom a proxy asks for, it does not exist.
    """
    own = frozenset(("localhost", *(name.lower() for name in names)))

    async def health(_: Request) -> Response:
        try:
            await run_in_threadpool(content.roots)
        except (CyberKVError, OSError):
            return PlainTextResponse("the store does not answer\n", 503, {**REFUSED, "Retry-After": "10"})
        return PlainTextResponse("ok\n", headers=REFUSED)

    def show_metrics(_: Request) -> Response:
        # Not for the scripts of other sites, which a browser on this machine may run.
        return Response(metrics.text(), headers={**FOREIGN, "Cache-Control": "no-store", "Content-Type": MEDIA_TYPE})

    beside = Starlette(routes=[Route("/healthz", health), Route("/metrics", show_metrics)])

    async def either(scope: Scope, receive: Receive, send: Send) -> None:
        is_beside = scope["path"] == "/healthz" or (scope["path"] == "/metrics" and is_near(Request(scope), own))
        await (beside if is_beside else app)(scope, receive, send)

    return Limited(Counted(either, metrics), metrics.refused)


def is_near(request: Request, own: frozenset[str]) -> bool:
    """Whether a program on this machine asks, for itself, by a loopback address or one of its `own` names.

    A browser here may be told by another site that the site's name is an address of this machine, and lets its scripts
    read what they then get by that name. The name still stands in the request.
    """
    near = request.client is not None and is_local(request.client.host)
    host = _host(request.headers.get("host", ""))
    return near and (host in own or is_local(host)) and not any(name in request.headers for name in _FORWARDED)


def _host(header: str) -> str:
    """Give the name or address in a Host header, without its port."""
    return header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0].lower()
