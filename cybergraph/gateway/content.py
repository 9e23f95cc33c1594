"""What the gateway may show: the published blocks of one home, singly or as a graph.

A CID that was not published is absent here, even when the store holds it, and nothing tells the two apart.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from ..cid import Buffer, Cid
from ..index import Index
from ..nodes import links
from ..runs import read_runs
from ..staging import Room, heap_room
from ..store.base import Store, not_found

RUN_BYTES: Final = 2 << 20
"""Leaves of so many bytes are read in one go, and sent in one piece."""


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

    def graph(self, root: Cid, *, dups: bool, room: Room = heap_room) -> Iterator[list[tuple[Cid, Buffer]]]:
        """Walk depth first from `root`, without recursion, following every link to something published.

        Gives the root alone and then runs of about `RUN_BYTES`, whose leaves are read together into memory from `room`.
        A fork links to its parent, which may be private: such a link is left out. A published block that the store
        lost raises `BlockNotFound`, so that the answer ends visibly short. Memory: one run, and the CIDs seen.
        """
        walk = self._walk(root, dups=dups)
        yield from read_runs(self._store, islice(walk, 1), 1, room)
        yield from read_runs(self._store, walk, RUN_BYTES, room)

    def _walk(self, root: Cid, *, dups: bool) -> Iterator[tuple[Cid, bytes | None]]:
        """List what is reachable and published; nodes with their bytes."""
        seen: set[Cid] = set()
        ahead = [root]
        while ahead:
            cid = ahead.pop()
            if cid in seen or not self._index.is_public(cid):
                continue
            if not dups:
                seen.add(cid)
            if cid.codec == "raw":
                yield cid, None
                continue
            node = self._store.get(cid)
            ahead.extend(reversed(links(node)))
            yield cid, node
