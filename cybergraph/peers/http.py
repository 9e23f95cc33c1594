"""A trustless gateway as a peer: raw blocks over a few connections, whole graphs as CAR streams.

What a cut connection left unfinished is asked for again by whole blocks, of this gateway or another. Ranges within a
block are not: a block has two megabytes at most, and the halves of one could not be checked apart.
"""

import io
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http.client import HTTPException
from typing import ClassVar, Final

from ..car import read_car
from ..checks import most_bytes
from ..cid import Buffer, Cid
from ..errors import (
    AccessDenied,
    BlockNotFound,
    CyberKVError,
    MalformedCar,
    NotOffered,
    PeerMisbehaved,
    PeerUnreachable,
    TruncatedCar,
)
from ..limits import MAX_CAR_HEADER_BYTES, MAX_CAR_SECTION_BYTES
from ..staging import Room
from .answers import CAR, RAW, CarBody, check_type, retry_after_s
from .base import Peer, Prover, not_held
from .line import Answer, Line, Patience
from .proving import WANTS, Entry
from .reach import ANYWHERE, Reach
from .redirect import Route, spend
from .url import GatewayUrl
from .window import Window

PROBE: Final = "bafkqaaa"
"""The CID of nothing, which every gateway has."""
_REST_BYTES: Final = 256
_NO_CARS: Final = (400, 405, 406, 415, 501)
"""How gateways say that they send single blocks only."""
_DEFAULT: Final = Patience()


class HttpPeer(Peer):
    """A gateway at an `http://` or `https://` URL."""

    has_dag: ClassVar = True

    def __init__(
        self,
        url: str,
        *,
        patience: Patience = _DEFAULT,
        connections: int = 4,
        reach: Reach = ANYWHERE,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare, without connecting. Raises `BadReference` for a URL that is not a gateway's."""
        self._url = GatewayUrl.parse(url)
        self.name = str(self._url)
        self._patience = patience
        self._clock = clock
        self._sleep = sleep
        self._stream, *routes = (Route(self._url, patience, clock, reach) for _ in range(connections + 1))
        self._window = Window(self.name, routes)
        self._entry = Entry(self._url, patience, sleep)

    def latency_s(self) -> float:
        """Ask for the block of nothing, and give the seconds to its answer.

        Raises `PeerUnreachable`; `PeerMisbehaved` or `BlockNotFound` for a server that answers as no gateway should.
        """
        start_s = self._clock()
        line, answer = self._ask(self._stream, PROBE, "format=raw", RAW, 0)
        with line.guarded():
            if answer.read(1):
                raise PeerMisbehaved(f"{self.name} sends bytes for the block of nothing", peer=self.name)
        return self._clock() - start_s

    def read_many(self, cids: Sequence[Cid], room: Room) -> Iterator[tuple[Cid, Buffer]]:
        """See `Peer`."""
        return self._window.read_many(cids, lambda route, cid: self._block(route, cid, room))

    def _block(self, route: Route, cid: Cid, room: Room) -> Buffer:
        line, answer = self._ask(route, str(cid), "format=raw", RAW, most_bytes(cid))
        with line.guarded():
            return self._body(answer, cid, room)

    def _body(self, answer: Answer, cid: Cid, room: Room) -> Buffer:
        if answer.length is None or cid.codec != "raw":
            data: Buffer = answer.read(most_bytes(cid) + 1)
            size_bytes = len(data)
        else:
            size_bytes = answer.length
            data = room(min(size_bytes, most_bytes(cid)))
            data = data[: answer.readinto(data)]
        if size_bytes > most_bytes(cid):
            raise PeerMisbehaved(f"{self.name} sends over {most_bytes(cid)} bytes for {cid}", cid=str(cid))
        if answer.length:
            raise PeerUnreachable(f"{self.name} closed the connection inside {cid}", cid=str(cid))
        return data

    def read_dag(self, cid: Cid, room: Room) -> Iterator[tuple[Cid, Buffer]]:
        """See `Peer`."""
        accept = f"{CAR}; version=1; order=dfs; dups=n"
        line, answer = self._ask(self._stream, str(cid), "format=car&dag-scope=all", accept, MAX_CAR_HEADER_BYTES)
        body = CarBody(answer, self.name)
        stream = io.BufferedReader(body)
        try:
            with line.guarded():
                line.meter.renew(MAX_CAR_HEADER_BYTES)
                try:
                    for found, data in read_car(stream, skip_foreign=True).unchecked(room):
                        yield found, data
                        del data
                        line.meter.renew(MAX_CAR_SECTION_BYTES)
                except MalformedCar:
                    with suppress(CyberKVError, OSError, HTTPException):
                        stream.read(_REST_BYTES)  # perhaps the gateway says there why
                    raise
        except (MalformedCar, TruncatedCar) as error:
            raise body.said() or error from None
        finally:
            if not answer.isclosed():
                line.close()

    def prove_with(self, prover: Prover) -> None:
        """See `Peer`."""
        self._entry.prover = prover

    def _ask(self, route: Route, name: str, query: str, accept: str, most_bytes: int) -> tuple[Line, Answer]:
        """Ask for a block, or everything below it, by its name, and give an answer of the right type, still unread."""
        token = self._entry.token
        try:
            return self._ask_with(token, route, name, query, accept, most_bytes)
        except (AccessDenied, BlockNotFound) as error:
            if not self._entry.renew(token, route, wanted=isinstance(error, AccessDenied)):
                raise
        return self._ask_with(self._entry.token, route, name, query, accept, most_bytes)

    def _ask_with(
        self, token: str | None, route: Route, name: str, query: str, accept: str, most_bytes: int
    ) -> tuple[Line, Answer]:
        target = f"/ipfs/{name}?{query}"
        for tries_left in range(self._patience.retries, -1, -1):
            line, answer = route.ask(target, accept, name, most_bytes, token)
            status = answer.status
            if status == 200:
                with line.guarded():
                    check_type(answer, accept.partition(";")[0], self.name)
                return line, answer
            wait_s = retry_after_s(answer)
            spend(line, answer)
            if status in (404, 410):
                raise not_held(self.name, [name])
            if status == 401 and answer.getheader("www-authenticate", "").startswith(WANTS):
                raise AccessDenied(
                    f"{self.name} wants proof of access for {name}", hint="it is sealed: fetch it by its sealed root",
                    peer=self.name, cid=name,
                )  # fmt: skip
            if status not in (429, 503):
                break
            if not tries_left or wait_s > self._patience.wait_s:
                raise PeerUnreachable(f"{self.name} is busy (status {status})", hint="try again later", peer=self.name)
            self._sleep(wait_s)
        if status in _NO_CARS and accept.startswith(CAR):
            raise NotOffered(f"{self.name} sends no CAR streams (status {status})", peer=self.name, status=status)
        kind = PeerUnreachable if status >= 500 else PeerMisbehaved
        raise kind(f"{self.name} answers status {status} for {name}", peer=self.name, status=status, cid=name)

    def abort(self) -> None:
        """See `Peer`."""
        self._stream.hang_up()
        self._window.abort()

    def close(self) -> None:
        """See `Peer`."""
        self._stream.end()
        self._window.close()
        self._stream.close()
