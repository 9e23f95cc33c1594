"""A Kubo node as a source: blocks one by one, whole graphs as the CAR that the node exports."""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final, Self

from ...car import read_car
from ...checks import most_bytes
from ...cid import Buffer, Cid
from ...errors import BlockNotFound, Corrupt, PeerMisbehaved, RpcFailed
from ...limits import MAX_CAR_SECTION_BYTES
from ...nodes import links
from ...staging import Room
from ..base import Peer, not_held
from ..line import Body, Patience
from ..window import Window
from .address import Credential, RpcAddress
from .rpc import READING, KuboRpc

CONNECTIONS: Final = 4
_ONLINE: Final = {"timeout": "20s"}
"""A node that lacks a block looks for it on the network, without end unless told."""
_ABSENT: Final = ("not found", "could not find", "deadline exceeded")
_HERE: Final = {"progress": "false", "local-only": "true", "offline": "true"}
"""What the node has of a graph, and nothing from the network, which would hold up the stream at each hole. A version
without `local-only` ends at the first."""


class KuboPeer(Peer):
    """What one node holds; asked for single blocks, also what it finds on its network while it is online."""

    has_dag: ClassVar = True

    def __init__(self, address: str, credential: Credential | None = None, patience: Patience = READING) -> None:
        """Prepare, without connecting. Raises `BadReference` for an address that is not an RPC's."""
        parsed = RpcAddress.parse(address)
        self._stream, *rpcs = (KuboRpc(parsed, credential, patience=patience) for _ in range(CONNECTIONS + 1))
        self.name = self._stream.name
        self._window = Window(self.name, rpcs)

    @classmethod
    def from_client(cls, client: Any) -> Self:
        """Take the node of an `ipfshttpclient.Client`: its address, and its bearer or basic authorisation.

        That client's own calls are not used: it predates the commands that matter here.
        """
        http = client._client  # noqa: SLF001 - it keeps its address and its session nowhere else
        return cls(http._base_url, _credential(http._session_props))  # noqa: SLF001

    def read_many(self, cids: Sequence[Cid], room: Room) -> Iterator[tuple[Cid, Buffer]]:
        """See `Peer`."""
        return self._window.read_many(cids, lambda rpc, cid: self._block(rpc, cid, room))

    def _block(self, rpc: KuboRpc, cid: Cid, room: Room) -> Buffer:
        most = most_bytes(cid)
        try:
            with rpc.call("block/get", str(cid), options=_ONLINE, most_bytes=most) as answer:
                data = answer.read(most + 1)
        except RpcFailed as error:
            raise self._absent(cid, error) from error
        if len(data) > most:
            raise PeerMisbehaved(f"{self.name} sends over {most} bytes for {cid}", cid=str(cid))
        if cid.codec != "raw":
            return data
        target = room(len(data))
        target[:] = data
        return target

    def read_dag(self, cid: Cid, room: Room) -> Iterator[tuple[Cid, Buffer]]:
        """See `Peer`. After what the node holds, raises `BlockNotFound` with what is linked to and did not come."""
        rpc = self._stream
        given, named = set[Cid](), {cid}
        try:
            with rpc.call("dag/export", str(cid), options=_HERE, most_bytes=MAX_CAR_SECTION_BYTES) as answer:
                for found, data in read_car(io.BufferedReader(Body(answer))).unchecked(room):
                    given.add(found)
                    if found.codec != "raw":
                        with suppress(Corrupt):  # whoever hashes it will see
                            named.update(links(data))
                    yield found, data
                    del data
                    rpc.renew(MAX_CAR_SECTION_BYTES)
        except RpcFailed as error:
            raise self._absent(cid, error) from error
        if absent := named - given:
            raise not_held(self.name, sorted(absent))

    def _absent(self, cid: Cid, error: RpcFailed) -> BlockNotFound | RpcFailed:
        reason = str(error.data["reason"])
        return not_held(self.name, [cid]) if any(words in reason for words in _ABSENT) else error

    def abort(self) -> None:
        """See `Peer`."""
        self._stream.hang_up()
        self._window.abort()

    def close(self) -> None:
        """See `Peer`."""
        self._stream.end()
        self._window.close()
        self._stream.close()


def _credential(session: Mapping[str, Any]) -> Credential | None:
    if auth := session.get("auth"):
        user, password = auth
        return Credential.parse(f"basic:{user}:{password}")
    header = session.get("headers", {}).get("Authorization")
    return Credential("header", header) if header else None
