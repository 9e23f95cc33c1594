"""A trustless gateway as a peer: raw blocks over a few connections, whole graphs as CAR streams."""

import io
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from http.client import HTTPResponse, IncompleteRead
from itertools import islice
from typing import Any, ClassVar, Final

from ..car import read_car
from ..cid import Cid
from ..errors import BlockNotFound, PeerMisbehaved, PeerUnreachable, TruncatedCar
from ..limits import MAX_CAR_HEADER_BYTES, MAX_CAR_SECTION_BYTES
from .base import Peer, most_bytes, not_held
from .line import Line, Patience
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
        """Prepare, without connecting. Raises `PeerError` for a URL that is not a gateway's."""
        self._url = GatewayUrl.parse(url)
        self.name = str(self._url)
        self._patience = patience
        self._sleep = sleep
        self._lines = [Line(self._url, patience, clock) for _ in range(connections + 1)]
        self._idle = deque(self._lines[1:])
        self._stream = self._lines[0]
        self._window = 2 * connections
        self._workers = ThreadPoolExecutor(connections, thread_name_prefix="gateway")

    def get_many(self, cids: Sequence[Cid]) -> Iterator[tuple[Cid, bytes]]:
        """See `Peer`."""
        waiting = iter(cids)
        running = deque((cid, self._workers.submit(self._block, cid)) for cid in islice(waiting, self._window))
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
                running.extend((cid, self._workers.submit(self._block, cid)) for cid in islice(waiting, 1))
        finally:
            for _, answer in running:
                answer.cancel()
        if absent:
            raise not_held(self.name, absent)

    def _block(self, cid: Cid) -> bytes:
        line = self._idle.pop()  # as many lines as workers: never empty
        try:
            answer = self._ask(line, f"/ipfs/{cid}?format=raw", RAW, cid)
            with line.guarded():
                data = answer.read(most_bytes(cid) + 1)
                if len(data) > most_bytes(cid):
                    raise PeerMisbehaved(f"{self.name} sends over {most_bytes(cid)} bytes for {cid}", cid=str(cid))
                if answer.length:
                    raise PeerUnreachable(f"{self.name} closed the connection inside {cid}", cid=str(cid))
                cid.verify(data)
            return data
        finally:
            self._idle.append(line)

    def get_dag(self, cid: Cid) -> Iterator[tuple[Cid, bytes]]:
        """See `Peer`."""
        line = self._stream
        accept = f"{CAR}; version=1; order=dfs; dups=n"
        answer = self._ask(line, f"/ipfs/{cid}?format=car&dag-scope=all", accept, cid)
        try:
            with line.guarded():
                line.meter.renew(MAX_CAR_HEADER_BYTES)
                for found, data in read_car(io.BufferedReader(_Body(answer, self.name))):
                    yield found, data
                    line.meter.renew(MAX_CAR_SECTION_BYTES)
        finally:
            if not answer.isclosed():
                line.close()

    def _ask(self, line: Line, target: str, accept: str, cid: Cid) -> HTTPResponse:
        for tries_left in range(self._patience.retries, -1, -1):
            answer = line.ask(target, accept, most_bytes(cid))
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

    def _check_type(self, answer: HTTPResponse, accept: str) -> None:
        expected = accept.partition(";")[0]
        got = answer.getheader("content-type", "")
        coded = answer.getheader("content-encoding", "identity")
        if got.partition(";")[0].strip().lower() != expected or coded != "identity":
            raise PeerMisbehaved(
                f"{self.name} answers with {got!r:.80} ({coded[:20]}) instead of {expected}",
                hint="this address is not a trustless IPFS gateway", peer=self.name, expected=expected, got=got[:80],
            )  # fmt: skip

    def close(self) -> None:
        """See `Peer`."""
        for line in self._lines:
            line.end()
        self._workers.shutdown(cancel_futures=True)
        for line in self._lines:
            line.close()


class _Body(io.RawIOBase):
    """The body of an answer as a plain file, in which an early end is an error and not an end."""

    def __init__(self, answer: HTTPResponse, name: str) -> None:
        self._answer = answer
        self._name = name
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        try:
            data = self._answer.read1(len(buffer))
        except IncompleteRead as error:
            raise self._cut() from error
        if not data and self._answer.length:
            raise self._cut()
        self._at += len(data)
        buffer[: len(data)] = data
        return len(data)

    def _cut(self) -> TruncatedCar:
        return TruncatedCar(f"{self._name} ends its CAR stream after {self._at} bytes", offset=self._at)


def _result(answer: "Future[bytes]", name: str) -> bytes:
    try:
        return answer.result()
    except CancelledError as error:
        raise PeerUnreachable(f"{name} was closed") from error


def _retry_after_s(answer: HTTPResponse) -> float:
    text = answer.getheader("retry-after", "")
    return float(text) if text.isdecimal() else 1.0
