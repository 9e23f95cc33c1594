from collections.abc import Iterator, Sequence

from cyberkv.cybergraph.cid import Buffer, Cid
from cyberkv.cybergraph.errors import BlockNotFound
from cyberkv.cybergraph.peers import Peer
from cyberkv.cybergraph.staging import Room
from cyberkv.cybergraph.store import Store


class StorePeer(Peer):
    """A store as a peer that remembers what it was asked for and what it gave."""

    name = "store"

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked: list[Cid] = []
        self.gave: list[Cid] = []

    def read_many(self, cids: Sequence[Cid], room: Room) -> Iterator[tuple[Cid, Buffer]]:
        self.asked += cids
        for cid in cids:
            if self._store.has(cid):
                self.gave.append(cid)
                yield cid, self._store.get(cid)
        if missing := self._store.missing(cids):
            raise BlockNotFound("absent", cids=[str(cid) for cid in missing])

    def close(self) -> None: ...
