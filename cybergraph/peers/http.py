"""A trustless gateway as a peer: raw blocks over a few connections, whole graphs as CAR streams."""

import io
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from http.client import IncompleteRead
from itertools import islice
from typing import Any, ClassVar, Final

from ..car import read_car
from ..cid import Buffer, Cid
from ..errors import BlockNotFound, PeerMisbehaved, PeerUnreachable, TruncatedCar
from ..limits import MAX_CAR_HEADER_BYTES, MAX_CAR_SECTION_BYTES
from ..staging import Room
from .base import Peer, most_bytes, not_held
from .line import Answer, Body, Line, Patience
from .url import GatewayUrl

RAW: Final = "application/vnd.ipld.raw"
CAR: Final = "application/vnd.ipld.car"
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
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare, without connecting. Raises `BadReference` for a URL that is not a gateway's."""
        self._url = GatewayUrl.parse(url)
        self.name = str(self._url)
        self._patience = patience
        self._sleep = sleep
        self._lines = [Line(self._url, patience, clock) for _ in range(connections + 1)]
        self._idle = deque(self._lines[1:])
        self._stream = self._lines[0]
        self._window = 2 * connections
        self._aborts = 0
        self._workers = ThreadPoolExecutor(connections, thread_name_prefix="gateway")

    def read_many(self, cids: Sequence[Cid], room: Room) -> Iterator[tuple[Cid, Buffer]]:
        """See `Peer`."""
        waiting = iter(cids)
        running = deque(
            (cid, self._workers.submit(self._block, cid, room, self._aborts)) for cid in islice(waiting, self._window)
        )
        absent: list[Cid] = []
        try:
            while running:
                cid, answer = running.popleft()
                try:
                    data = _result(answer, self.name)
                except BlockNotFound:
                    absent.append(cid)
                else:
                    yield cid, data
                    del data
                del answer
                running.extend(
                    (cid, self._workers.submit(self._block, cid, room, self._aborts)) for cid in islice(waiting, 1)
                )
        finally:
            for _, answer in running:
                answer.cancel()
        if absent:
            raise not_held(self.name, absent)

    def _block(self, cid: Cid, room: Room, aborts: int) -> Buffer:
        if aborts != self._aborts:
            raise PeerUnreachable(f"{self.name} was given up", peer=self.name)
        line = self._idle.pop()  # as many lines as workers: never empty
        try:
            answer = self._ask(line, f"/ipfs/{cid}?format=raw", RAW, cid)
            with line.guarded():
                return self._body(answer, cid, room)
        finally:
            self._idle.append(line)

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
        line = self._stream
        accept = f"{CAR}; version=1; order=dfs; dups=n"
        answer = self._ask(line, f"/ipfs/{cid}?format=car&dag-scope=all", accept, cid)
        try:
            with line.guarded():
                line.meter.renew(MAX_CAR_HEADER_BYTES)
                for found, data in read_car(io.BufferedReader(_CarBody(answer, self.name))).unchecked(room):
                    yield found, data
                    del data
                    line.meter.renew(MAX_CAR_SECTION_BYTES)
        finally:
            if not answer.isclosed():
                line.close()

    def _ask(self, line: Line, target: str, accept: str, cid: Cid) -> Answer:
        for tries_left in range(self._patience.retries, -1, -1):
            answer = line.ask(target, {"Accept": accept}, most_bytes(cid))
            status = answer.status
            if status == 200:
                with line.guarded():
                    self._check_type(answer, accept)
                return answer
            wait_s = _retry_after_s(answer)
            with line.guarded():
                answer.read(4096)
            if not answer.isclosed():
                line.close()
            if status in (404, 410):
                raise not_held(self.name, [cid])
            if status not in (429, 503):
                break
            if not tries_left or wait_s > self._patience.wait_s:
                raise PeerUnreachable(f"{self.name} is busy (status {status})", hint="try again later", peer=self.name)
            self._sleep(wait_s)
        if 300 <= status < 400:
            raise PeerMisbehaved(
                f"{self.name} redirects {cid} to {answer.getheader('location', '')!r:.120}; redirects are not followed",
                hint="give the final address in --from", peer=self.name, status=status,
            )  # fmt: skip
        kind = PeerUnreachable if status >= 500 else PeerMisbehaved
        raise kind(f"{self.name} answers status {status} for {cid}", peer=self.name, status=status, cid=str(cid))

    def _check_type(self, answer: Answer, accept: str) -> None:
        expected = accept.partition(";")[0]
        got = answer.getheader("content-type", "")
        coded = answer.getheader("content-encoding", "identity")
        if got.partition(";")[0].strip().lower() != expected or coded != "identity":
            raise PeerMisbehaved(
                f"{self.name} answers with {got!r:.80} ({coded[:20]}) instead of {expected}",
                hint="this address is not a trustless IPFS gateway", peer=self.name, expected=expected, got=got[:80],
            )  # fmt: skip

    def abort(self) -> None:
        """See `Peer`."""
        self._aborts += 1  # requests that wait for their turn are not begun
        for line in self._lines:
            line.hang_up()

    def close(self) -> None:
        """See `Peer`."""
        for line in self._lines:
            line.end()
        self._workers.shutdown(cancel_futures=True)
        for line in self._lines:
            line.close()


class _CarBody(Body):
    """A body that says at which byte of the stream it was cut."""

    def __init__(self, answer: Answer, name: str) -> None:
        super().__init__(answer)
        self._name = name
        self._at = 0

    def readinto(self, buffer: Any, /) -> int:
        try:
            count = super().readinto(buffer)
        except IncompleteRead as error:
            raise TruncatedCar(f"{self._name} ends its CAR stream after {self._at} bytes", offset=self._at) from error
        self._at += count
        return count


def _result(answer: "Future[Buffer]", name: str) -> Buffer:
    try:
        return answer.result()
    except CancelledError as error:
        raise PeerUnreachable(f"{name} was closed") from error


def _retry_after_s(answer: Answer) -> float:
    text = answer.getheader("retry-after", "")
    return float(text) if text.isdecimal() else 1.0
