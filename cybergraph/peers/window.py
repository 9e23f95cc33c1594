"""Single blocks from a peer that has a few connections: some requests under way, and some waiting for their turn."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

from ..cid import Buffer, Cid
from ..errors import BlockNotFound, PeerUnreachable
from .base import not_held

_EACH: Final = 2
"""Requests for each connection: one under way, and one that follows it at once."""


class Connection(Protocol):
    """What a request needs for itself."""

    def hang_up(self) -> None:
        """Fail what is under way in another thread."""

    def end(self) -> None:
        """Fail what is under way in another thread, and everything after it."""

    def close(self) -> None:
        """Let go of it."""


AnyConnection = TypeVar("AnyConnection", bound=Connection)


class Window(Generic[AnyConnection]):
    """Connections to one peer, each used by one thread at a time."""

    def __init__(self, name: str, connections: Sequence[AnyConnection]) -> None:
        """Take the connections, not open yet, and the name of the peer, for messages."""
        self._name = name
        self._connections = connections
        self._idle = deque(connections)
        self._aborts = 0
        self._workers = ThreadPoolExecutor(len(connections), thread_name_prefix="blocks")

    def read_many(
        self, cids: Sequence[Cid], get: Callable[[AnyConnection, Cid], Buffer]
    ) -> Iterator[tuple[Cid, Buffer]]:
        """Give each block that `get` brings, in their order.

        After the rest was given, raises `BlockNotFound` with those for which `get` raised it. Raises at once what else
        `get` raises, and `PeerUnreachable` after `abort` or `close`.
        """
        waiting = iter(cids)
        running: deque[tuple[Cid, Future[Buffer]]] = deque()
        absent: list[Cid] = []
        try:
            while True:
                for cid in islice(waiting, _EACH * len(self._connections) - len(running)):
                    running.append((cid, self._submit(cid, get)))
                if not running:
                    break
                cid, answer = running.popleft()
                try:
                    data = answer.result()
                except CancelledError as error:
                    raise self._closed() from error
                except BlockNotFound:
                    absent.append(cid)
                else:
                    yield cid, data
                    del data
                del answer  # or the memory of the block would stay in use while the next is waited for
        finally:
            for _, answer in running:
                answer.cancel()
        if absent:
            raise not_held(self._name, absent)

    def _submit(self, cid: Cid, get: Callable[[AnyConnection, Cid], Buffer]) -> "Future[Buffer]":
        try:
            return self._workers.submit(self._get, cid, get, self._aborts)
        except RuntimeError as error:  # it was shut down
            raise self._closed() from error

    def _get(self, cid: Cid, get: Callable[[AnyConnection, Cid], Buffer], aborts: int) -> Buffer:
        if aborts != self._aborts:
            raise PeerUnreachable(f"{self._name} was given up", peer=self._name)
        connection = self._idle.pop()  # as many as workers: never empty
        try:
            return get(connection, cid)
        finally:
            self._idle.append(connection)

    def abort(self) -> None:
        """Make the requests under way in other threads fail, and do not begin those that wait for their turn."""
        self._aborts += 1
        for each in self._connections:
            each.hang_up()

    def close(self) -> None:
        """Make all requests fail, now and later, and let go of the connections."""
        for each in self._connections:
            each.end()
        self._workers.shutdown(cancel_futures=True)
        for each in self._connections:
            each.close()

    def _closed(self) -> PeerUnreachable:
        return PeerUnreachable(f"{self._name} was closed", peer=self._name)
