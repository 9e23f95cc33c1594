"""A store as a peer: what is here already, asked for as if it were elsewhere."""

from collections.abc import Iterator, Sequence

from ..cid import Buffer, Cid
from ..errors import BlockNotFound
from ..staging import Room
from ..store.base import Store
from .base import Peer, not_held


class StorePeer(Peer):
    """The blocks of a store, which stays open."""

    name = "this home"

    def __init__(self, store: Store) -> None:
        """Take a store."""
        self._store = store

    def read_many(self, cids: Sequence[Cid], room: Room) -> Iterator[tuple[Cid, Buffer]]:
        """See `Peer`."""
        absent: list[Cid] = []
        for cid in cids:
            size_bytes = self._store.size_bytes(cid)
            try:
                if cid.codec != "raw" or size_bytes is None:
                    yield cid, self._store.get(cid)
                else:
                    data = room(size_bytes)
                    self._store.get_into([cid], [data])
                    yield cid, data
            except BlockNotFound:
                absent.append(cid)
        if absent:
            raise not_held(self.name, absent)

    def close(self) -> None:
        """See `Peer`."""
