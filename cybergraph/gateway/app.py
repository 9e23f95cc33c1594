"""The gateway: blocks over HTTP, as the path and trustless gateway specifications say.

One address, `/ipfs/<cid>/<path>`, and several forms of answer: the bytes of a block, a node in another encoding, a CAR
stream of what a block links to, a page for people. The reader of bytes checks them against their CID, so the gateway
need not be trusted, only reached.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from ..errors import BlockNotFound, Corrupt, MalformedCid, UnsupportedFormat
from ..foreign import AnyCid, AnyValue, parse_cid
from .blocks import answer_block, not_modified
from .cars import CarOptions
from .carstream import CarStreams, car_header
from .content import Content
from .door import Door
from .names import disposition, name_headers
from .negotiate import TYPES, Form, Wanted, negotiate, prefers_page
from .refusal import CROSS_ORIGIN, FOREIGN, REFUSED, refuse
from .resolve import Place, read_node, resolve, split_path

PROBE: Final = "bafkqaaa"
"""The CID of nothing, which readers ask for to learn whether this is a gateway."""
_METHODS: Final = ("GET", "HEAD", "OPTIONS")


class Explorer(Protocol):
    """Pages for people, as `pages.Pages` makes them."""

    def routes(self) -> Sequence[BaseRoute]:
        """List the addresses besides `/ipfs`."""

    def node(self, request: Request, cid: AnyCid, node: AnyValue, path: str) -> Response:
        """Show a node; `path` is what stands after `/ipfs/`."""

    def error(self, request: Request, status: int, reason: str) -> Response:
        """Say why there is nothing to show."""


def build_app(content: Content, pages: Explorer | None = None, door: Door | None = None) -> Starlette:
    """Build the ASGI application over what may be shown, with or without pages. It changes nothing.

    A door decides for each request what of `content` it may see; `pages` show what is outside of it.
    """
    gateway = Gateway(content, pages, door)
    routes: list[BaseRoute] = [
        Route("/ipfs/{cid}", gateway.answer, methods=_METHODS),
        Route("/ipfs/{cid}/{path:path}", gateway.answer, methods=_METHODS),
        *(pages.routes() if pages is not None else ()),
        *(door.routes() if door is not None else ()),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: gateway.refused})
    app.router.redirect_slashes = False
    return app


class Gateway:
    """Answers requests for `/ipfs`. Its methods are called from several threads."""

    def __init__(self, content: Content, pages: Explorer | None, door: Door | None) -> None:
        self._content = content
        self._pages = pages
        self._door = door
        self._streams = CarStreams()

    def answer(self, request: Request) -> Response:
        """Answer one request. Raises `HTTPException` for whatever is not 200, 204, 206 or 304."""
        if request.method == "OPTIONS":
            return Response(status_code=204, headers={**CROSS_ORIGIN, "Allow": ", ".join(_METHODS)})
        if request.headers.get("service-worker") == "script":
            raise refuse(400, "nothing here may become a service worker")
        text, segments, slash = split_path(request.scope["raw_path"])
        wanted = negotiate(request.query_params, request.headers.get("accept", ""))
        if text == PROBE and not segments:
            return self._probe(request, wanted)
        try:
            root = parse_cid(text)
        except MalformedCid as error:
            raise refuse(400, "not a CID") from error
        try:
            content = self._content if self._door is None else self._door.content_for(request)
            return self._at(request, content, resolve(content, root, segments, slash=slash), wanted)
        except BlockNotFound as error:
            if "only-if-cached" in request.headers.get("cache-control", "").lower():
                raise HTTPException(412, "") from error
            if self._door is not None:
                self._door.turn_away(request, str(error.data["cid"]))
            raise refuse(404, f"{error.data['cid']} is not published here") from error
        except Corrupt as error:
            named = error.data.get("cid", text)
            raise refuse(500, f"{named} is damaged here, or not of a form that is read, and is not served") from error
        except UnsupportedFormat as error:
            raise refuse(501, error.message) from error

    def refused(self, request: Request, error: Exception) -> Response:
        """Say why something is refused: on a page where the reader would rather have one."""
        if not isinstance(error, HTTPException):
            raise error
        if self._pages is not None and prefers_page(request.headers.get("accept", "")):
            answer = self._pages.error(request, error.status_code, error.detail)
            for name, value in {**CROSS_ORIGIN, "Cache-Control": "no-store", **(error.headers or {})}.items():
                answer.headers[name] = value
            return answer
        return PlainTextResponse(error.detail, error.status_code, {**REFUSED, **(error.headers or {})})

    def _at(self, request: Request, content: Content, place: Place, wanted: Wanted) -> Response:
        size_bytes = content.size_bytes(place.cid)
        if size_bytes is None:
            raise BlockNotFound(f"{place.cid} is not published", cid=str(place.cid))
        form = wanted.choose(place.cid.codec, pages=self._pages is not None)
        if form == "html" and self._pages is not None:
            return self._page(request, content, place, self._pages)
        edition = content.edition(place.cid) if form == "car" and wanted.car.scope == "all" else ""
        headers = _headers(request, place, form, wanted, edition) | self._apart(request)
        if edition:  # what it leaves out may come later, and nobody should have to wait a year for that
            headers["Cache-Control"] = headers["Cache-Control"].partition(",")[0] + ", no-cache"
        if form != "car":
            return answer_block(request, content, place.cid, size_bytes, form, headers)
        if wanted.car.entity_bytes and place.cid.codec == "raw":
            wanted.car.check_bytes(size_bytes)
        if not_modified(request, headers["Etag"]):
            return Response(status_code=304, headers=headers)
        host = request.client.host if request.client is not None else ""
        return self._streams.answer(content, place, wanted.car, headers, host=host, body=request.method == "GET")

    def _page(self, request: Request, content: Content, place: Place, pages: Explorer) -> Response:
        node = read_node(place.cid, content.get(place.cid))
        answer = pages.node(request, place.cid, node, place.text)
        answer.headers.update({"Vary": "Accept", **name_headers(place), **CROSS_ORIGIN, **self._apart(request)})
        return answer

    def _apart(self, request: Request) -> dict[str, str]:
        return {} if self._door is None else self._door.headers_for(request)

    def _probe(self, request: Request, wanted: Wanted) -> Response:
        nothing = Place((), slash=False, cids=(parse_cid(PROBE),))
        form = wanted.choose("raw", pages=False)
        body = car_header(nothing.cid) if form == "car" else b""
        return Response(body, headers=_headers(request, nothing, form, wanted))


def _headers(request: Request, place: Place, form: Form, wanted: Wanted, edition: str = "") -> dict[str, str]:
    headers = {
        "Content-Type": wanted.car.content_type if form == "car" else TYPES[form],
        "Content-Disposition": disposition(request.query_params, str(place.cid), form),
        "Etag": _tag(place, form, wanted.car, edition),
        "Cache-Control": "public, max-age=29030400, immutable",
        "Vary": "Accept",
        "Accept-Ranges": "none" if form == "car" else "bytes",
        **name_headers(place), **CROSS_ORIGIN, **FOREIGN,
    }  # fmt: skip
    if wanted.says_location(form):
        more = wanted.car.query if form == "car" else ""
        headers["Content-Location"] = f"/ipfs/{place.url_path}?format={form}{more}"
    return headers


def _tag(place: Place, form: Form, car: CarOptions, edition: str) -> str:
    """The entity tag: one for each form in which a place can be answered, and for each edition of a stream."""
    if form == "file":
        return f'"{place.cid}"'
    if form != "car":
        return f'"{place.cid}.{form}"'
    # Weak: another server may send the same blocks in another order.
    return f'W/"{".".join(map(str, (*place.cids, "car", car.tag, *((edition,) if edition else ()))))}"'
