"""What the gateway may show: the published blocks of one home, singly or as a graph.

A CID that was not published is absent here, even when the store holds it, and nothing tells the two apart.
"""

from collections.abc import Iterator

from ..cid import Cid
from ..index import Index
from ..nodes import links
from ..store.base import Store, not_found


class Published:
    """The part of a store that was published."""

    def __init__(self, store: Store, index: Index) -> None:
        self._store = store
        self._index = index

    def size_bytes(self, cid: Cid) -> int | None:
        """Give the length of a published block that is here, else None."""
        return self._store.size_bytes(cid) if self._index.is_public(cid) else None

    def get(self, cid: Cid) -> bytes:
        """Give a published block, verified. Raises `BlockNotFound`, `DigestMismatch`."""
        if not self._index.is_public(cid):
            raise not_found(cid)
        return self._store.get(cid)

    def graph(self, root: Cid, *, dups: bool) -> Iterator[tuple[Cid, bytes]]:
        """Walk depth first from `root`, without recursion, following every link to something published.

        A fork links to its parent, which may be private: such a link is left out. A published block that the store
        lost raises `BlockNotFound`, so that the answer ends visibly short. Memory: one block, and the CIDs seen.
        """
        seen: set[Cid] = set()
        ahead = [root]
        while ahead:
            cid = ahead.pop()
            if cid in seen or not self._index.is_public(cid):
                continue
            if not dups:
                seen.add(cid)
            data = self._store.get(cid)
            yield cid, data
            if cid.codec == "dag-cbor":
                ahead.extend(reversed(links(data)))
