"""A Kubo node as a source: blocks one by one, whole graphs as the CAR that the node exports."""

import io
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, ClassVar, Final, Self

from ...car import read_car
from ...cid import Buffer, Cid
from ...errors import BlockNotFound, PeerMisbehaved, RpcFailed
from ...limits import MAX_CAR_SECTION_BYTES
from ...staging import Room
from ..base import Peer, most_bytes, not_held
from ..line import Body
from .address import Credential, RpcAddress
from .rpc import KuboRpc

CONNECTIONS: Final = 4
_ONLINE: Final = {"timeout": "20s"}
"""A node that lacks a block looks for it on the network, without end unless told."""
_ABSENT: Final = ("not found", "could not find", "deadline exceeded")
_WHOLE: Final = {"progress": "false"}


class KuboPeer(Peer):
    """What one node holds, or finds on its network while it is online."""

    has_dag: ClassVar = True

    def __init__(self, address: str, credential: Credential | None = None) -> None:
        """Prepare, without connecting. Raises `BadReference` for an address that is not an RPC's."""
        parsed = RpcAddress.parse(address)
        self._lines = [KuboRpc(parsed, credential) for _ in range(CONNECTIONS + 1)]
        self._idle = deque(self._lines[1:])
        self._stream = self._lines[0]
        self.name = self._stream.name
        self._workers = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="kubo")

    @classmethod
    def from_client(cls, client: Any) -> Self:
        """Take the node of an `ipfshttpclient.Client`: its address, and its bearer or basic authorisation.

        That client's own calls are not used: it predates the commands that matter here.
        """
        http = client._client  # noqa: SLF001 - it keeps its address and its session nowhere else
        return cls(http._base_url, _credential(http._session_props))  # noqa: SLF001

    def read_many(self, cids: Sequence[Cid], room: Room) -> Iterator[tuple[Cid, Buffer]]:
        """See `Peer`."""
        waiting = iter(cids)
        running: deque[tuple[Cid, Future[Buffer]]] = deque()
        absent: list[Cid] = []
        try:
            while True:
                fresh = islice(waiting, 2 * CONNECTIONS - len(running))
                running.extend((cid, self._workers.submit(self._block, cid, room)) for cid in fresh)
                if not running:
                    break
                cid, answer = running.popleft()
                try:
                    data = answer.result()
                except BlockNotFound:
                    absent.append(cid)
                else:
                    yield cid, data
        finally:
            for _, answer in running:
                answer.cancel()
        if absent:
            raise not_held(self.name, absent)

    def _block(self, cid: Cid, room: Room) -> Buffer:
        rpc = self._idle.pop()  # as many as workers: never empty
        try:
            most = most_bytes(cid)
            with rpc.call("block/get", str(cid), options=_ONLINE, most_bytes=most) as answer:
                data = answer.read(most + 1)
            if len(data) > most:
                raise PeerMisbehaved(f"{self.name} sends over {most} bytes for {cid}", cid=str(cid))
            if cid.codec != "raw":
                return data
            target = room(len(data))
            target[:] = data
            return target
        except RpcFailed as error:
            raise self._absent(cid, error) from error
        finally:
            self._idle.append(rpc)

    def read_dag(self, cid: Cid, room: Room) -> Iterator[tuple[Cid, Buffer]]:
        """See `Peer`."""
        rpc = self._stream
        try:
            with rpc.call("dag/export", str(cid), options=_WHOLE, most_bytes=MAX_CAR_SECTION_BYTES) as answer:
                for found, data in read_car(io.BufferedReader(Body(answer))).unchecked(room):
                    yield found, data
                    del data
                    rpc.renew(MAX_CAR_SECTION_BYTES)
        except RpcFailed as error:
            raise self._absent(cid, error) from error

    def _absent(self, cid: Cid, error: RpcFailed) -> BlockNotFound | RpcFailed:
        reason = str(error.data["reason"])
        return not_held(self.name, [cid]) if any(words in reason for words in _ABSENT) else error

    def abort(self) -> None:
        """See `Peer`."""
        for rpc in self._lines:
            rpc.abort()

    def close(self) -> None:
        """See `Peer`."""
        self.abort()
        self._workers.shutdown(cancel_futures=True)
        for rpc in self._lines:
            rpc.close()


def _credential(session: Mapping[str, Any]) -> Credential | None:
    if auth := session.get("auth"):
        user, password = auth
        return Credential.parse(f"basic:{user}:{password}")
    header = session.get("headers", {}).get("Authorization")
    return Credential("header", header) if header else None
