"""CAR answers: blocks as they are read and checked, in pieces, a few streams at a time."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from itertools import chain
from threading import Lock
from typing import Final
from weakref import WeakKeyDictionary

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ..cid import Buffer
from ..errors import BlockNotFound
from ..foreign import AnyCid, ForeignCid
from ..ipld import write_value
from ..staging import Staging
from ..varint import write_varint
from .cars import CarOptions
from .content import Content, Run, Runs
from .limits import is_local, reader
from .refusal import refuse
from .resolve import Place

STREAM_BYTES: Final = 8 << 20
"""Memory of one stream: a run that is sent, one that is read, and room for the largest leaves."""
MOST_STREAMS: Final = 16
"""Streams at one time: together, with what waits in their connections, they stay below 200 MiB."""
MOST_STREAMS_EACH: Final = 4
"""Streams of one address. Programs on this machine have no share of their own: a proxy stands there for everybody."""


class CarStreams:
    """The CAR answers of one server."""

    def __init__(self) -> None:
        self._running: WeakKeyDictionary[Staging, str | None] = WeakKeyDictionary()
        """Streams under way, and whose each is."""
        self._entering = Lock()

    def answer(
        self, content: Content, place: Place, options: CarOptions, headers: dict[str, str], *, host: str, body: bool
    ) -> Response:
        """Answer with the blocks on the way to a place, and then with that one or with all below it.

        The reader is at `host`. Without `body` only the headers. Raises `BlockNotFound` and `Corrupt` for what is wrong
        with the blocks on the way and with the first below, `HTTPException` 503 where too many streams run; a block
        that is lost or damaged further down ends the answer early, without its last chunk.
        """
        if options.scope == "block":
            blocks: Run = [(cid, content.get(cid)) for cid in place.cids]
            return Response(b"".join(_pieces(place.cid, iter([blocks]))), headers=headers)
        if not body:
            return StreamingResponse(iter(()), headers=headers)
        staging = self._enter(None if is_local(host) else reader(host))
        way: Run = [(cid, content.get(cid)) for cid in place.cids[:-1]]
        runs = content.graph(place.cid, dups=options.dups, room=staging.room)
        first = next(runs, None)  # what is wrong here is said by a status, while there still is one to choose
        if first is None:
            raise BlockNotFound(f"{place.cid} is not published", cid=str(place.cid))
        return _Stream(_ahead(_pieces(place.cid, chain([[*way, *first]], runs))), headers)

    def _enter(self, who: str | None) -> Staging:
        """Give a stream its memory, with which it leaves when the answer is over. Raises `HTTPException` 503."""
        with self._entering:
            held = list(self._running.values())
            if len(held) >= MOST_STREAMS or (who is not None and held.count(who) >= MOST_STREAMS_EACH):
                raise refuse(503, "too many streams, come back in a moment", **{"Retry-After": "1"})
            staging = Staging(STREAM_BYTES)
            self._running[staging] = who
        return staging


class _Stream(StreamingResponse):
    """An answer that gives its memory back when it is over, however it ends, and not when somebody finds it unused."""

    def __init__(self, pieces: AsyncGenerator[bytes], headers: dict[str, str]) -> None:
        super().__init__(pieces, headers=headers)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._pieces.aclose()


def car_header(root: AnyCid) -> bytes:
    """Give what stands before the blocks of a CAR whose root may have a CID of any form."""
    header = write_value("dag-cbor", {"roots": [root], "version": 1})
    return write_varint(len(header)) + header


def _pieces(root: AnyCid, runs: Runs) -> Generator[bytes]:
    """A CAR in pieces of a run each: a piece for each node would cost more than its bytes."""
    head = car_header(root)
    for run in runs:
        parts: list[Buffer] = [head]
        for cid, data in run:
            if not (isinstance(cid, ForeignCid) and cid.hash_name == "identity"):  # it holds its bytes itself
                parts += write_varint(len(cid) + len(data)) + cid, data
        yield b"".join(parts)
        head = b""


async def _ahead(pieces: Generator[bytes]) -> AsyncGenerator[bytes]:
    """Give pieces; the next is read and checked while the one before is being sent."""
    coming = asyncio.ensure_future(run_in_threadpool(next, pieces, None))
    try:
        while (piece := await coming) is not None:
            coming = asyncio.ensure_future(run_in_threadpool(next, pieces, None))
            yield piece
    finally:  # the reader may have left: what is being read is waited for, not what would come after it
        coming.add_done_callback(lambda _: pieces.close())
        coming.cancel()
