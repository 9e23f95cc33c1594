"""CAR answers: blocks as they are read and checked, in pieces, a few streams at a time."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import chain
from threading import Lock
from typing import Final
from weakref import WeakKeyDictionary

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

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
        return StreamingResponse(_ahead(_pieces(place.cid, chain([[*way, *first]], runs))), headers=headers)

    def _enter(self, who: str | None) -> Staging:
        """Give a stream its memory, with which it leaves when the answer is over. Raises `HTTPException` 503."""
        with self._entering:
            held = list(self._running.values())
            if len(held) >= MOST_STREAMS or (who is not None and held.count(who) >= MOST_STREAMS_EACH):
                raise refuse(503, "too many streams, come back in a moment", **{"Retry-After": "1"})
            staging = Staging(STREAM_BYTES)
            self._running[staging] = who
        return staging


def car_header(root: AnyCid) -> bytes:
    """Give what stands before the blocks of a CAR whose root may have a CID of any form."""
    header = write_value("dag-cbor", {"roots": [root], "version": 1})
    return write_varint(len(header)) + header


def _pieces(root: AnyCid, runs: Runs) -> Iterator[bytes]:
    """A CAR in pieces of a run each: a piece for each node would cost more than its bytes."""
    head = car_header(root)
    for run in runs:
        parts: list[Buffer] = [head]
        for cid, data in run:
            if not (isinstance(cid, ForeignCid) and cid.hash_name == "identity"):  # it holds its bytes itself
                parts += write_varint(len(cid) + len(data)) + cid, data
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
