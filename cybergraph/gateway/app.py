"""The gateway: published blocks over HTTP, as the trustless gateway specification says.

One address, `/ipfs/<cid>`, with two forms of answer: the bytes of one block, or a CAR stream of what it links to. The
reader checks every byte against its CID, so the gateway need not be trusted, only reached.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import chain
from typing import Final
from weakref import WeakSet

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ..car import car_head, car_header, car_section
from ..cid import Buffer, Cid
from ..errors import BlockNotFound, Corrupt, MalformedCid
from ..index import Index
from ..staging import Staging
from ..store.base import Store
from .content import Published
from .negotiate import Wanted, negotiate, refuse

PROBE: Final = "bafkqaaa"
"""The CID of nothing, which readers ask for to learn whether this is a gateway."""
_PROBE_CAR: Final = bytes.fromhex("19a265726f6f747381d82a4500015500006776657273696f6e01")
STREAM_BYTES: Final = 8 << 20
"""Memory of one stream: a run that is sent, one that is read, and room for the largest leaves."""
MOST_STREAMS: Final = 16
"""Streams at one time: together, with what waits in their connections, they stay below 200 MiB."""


def build_app(store: Store, index: Index) -> Starlette:
    """Build the ASGI application over the published set of one home. It changes nothing."""
    content = Published(store, index)
    streams: WeakSet[Staging] = WeakSet()

    def answer(request: Request) -> Response:
        text = request.path_params["cid"]
        if text == PROBE:
            return _probe(request)
        try:
            cid = Cid.parse(text)
        except MalformedCid as error:
            raise refuse(400, "not a CID of the forms this gateway holds") from error
        wanted = negotiate(request.query_params, request.headers.get("accept", ""))
        try:
            return _block(request, content, cid, wanted, streams)
        except BlockNotFound as error:
            only_cached = "only-if-cached" in request.headers.get("cache-control", "").lower()
            raise refuse(412 if only_cached else 404, f"{cid} is not published here") from error
        except Corrupt as error:
            raise refuse(500, f"{cid} is damaged here and is not served") from error

    app = Starlette(routes=[Route("/ipfs/{cid}", answer, methods=["GET", "HEAD"])])
    app.router.redirect_slashes = False
    return app


def _block(request: Request, content: Published, cid: Cid, wanted: Wanted, streams: "WeakSet[Staging]") -> Response:
    size_bytes = content.size_bytes(cid)
    if size_bytes is None:
        raise BlockNotFound(f"{cid} is not published", cid=str(cid))
    headers = _headers(str(cid), wanted)
    if _matches(request.headers.get("if-none-match", ""), headers["Etag"]):
        return Response(status_code=304, headers=headers)
    if wanted.format == "raw":
        if request.method == "HEAD":
            return Response(headers={**headers, "Content-Length": str(size_bytes)})
        return Response(content.get(cid), headers=headers)
    if wanted.scope == "block":
        return Response(car_header([cid]) + car_section(cid, content.get(cid)), headers=headers)
    if request.method == "HEAD":
        return StreamingResponse(iter(()), headers=headers)
    if len(streams) >= MOST_STREAMS:
        raise refuse(503, "too many streams, come back in a moment", **{"Retry-After": "1"})
    staging = Staging(STREAM_BYTES)
    streams.add(staging)  # and it leaves when the answer is over
    runs = content.graph(cid, dups=wanted.dups, room=staging.room)
    first = next(runs)  # what is wrong with the root is said by a status, while there still is one to choose
    return StreamingResponse(_ahead(_pieces(cid, chain([first], runs))), headers=headers)


def _headers(cid: str, wanted: Wanted) -> dict[str, str]:
    ending = "bin" if wanted.format == "raw" else "car"
    headers = {
        "Content-Type": wanted.content_type,
        "Content-Disposition": f'attachment; filename="{cid}.{ending}"',
        "Etag": wanted.etag(cid),
        "Cache-Control": "public, max-age=29030400, immutable",
        "X-Content-Type-Options": "nosniff",
        "Vary": "Accept",
    }
    if wanted.format == "car":
        headers["Accept-Ranges"] = "none"
    if wanted.by_accept:
        scope = f"&dag-scope={wanted.scope}&car-dups={'yn'[not wanted.dups]}" if wanted.format == "car" else ""
        headers["Content-Location"] = f"/ipfs/{cid}?format={wanted.format}{scope}"
    return headers


def _matches(if_none_match: str, etag: str) -> bool:
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in tags or etag.removeprefix("W/") in tags


def _pieces(root: Cid, runs: Iterator[list[tuple[Cid, Buffer]]]) -> Iterator[bytes]:
    """A CAR in pieces of a run each: a piece for each node would cost more than its bytes."""
    head = car_header([root])
    for run in runs:
        parts: list[Buffer] = [head]
        for cid, data in run:
            parts += car_head(cid, len(data)), data
        yield b"".join(parts)
        head = b""


async def _ahead(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Give pieces; the next is read and checked while the one before is being sent."""
    coming = asyncio.ensure_future(run_in_threadpool(next, pieces, None))
    while (piece := await coming) is not None:
        coming = asyncio.ensure_future(run_in_threadpool(next, pieces, None))
        try:
            yield piece
        except BaseException:
            coming.cancel()  # the reader has left
            raise


def _probe(request: Request) -> Response:
    query, accept = request.query_params, request.headers.get("accept", "")
    wanted = negotiate(query, accept)
    return Response(_PROBE_CAR if wanted.format == "car" else b"", headers=_headers(PROBE, wanted))
