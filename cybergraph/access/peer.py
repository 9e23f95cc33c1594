"""A sealed conversation as a peer: whoever has its key asks for blocks by the names they have at home.

What another peer gives is opened on its way, so that fetching, resuming and every check of a conversation's form are
the same as for a public one.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from ..cid import Buffer, Cid
from ..errors import BlockNotFound, LimitExceeded
from ..limits import MAX_SEGMENT_PAGES_BYTES
from ..peers.base import Peer, not_held
from ..staging import Room, heap_room
from .opened import OpenedTable, Place


class SealedPeer(Peer):
    """Another peer, seen through an opened page table. Several may share the table."""

    has_dag: ClassVar = True

    def __init__(self, inner: Peer, table: OpenedTable) -> None:
        """Take a peer that gives the sealed blocks; it is closed with this one."""
        self._inner = inner
        self._table = table
        self.name = inner.name

    def read_many(self, cids: Sequence[Cid], room: Room) -> Iterator[tuple[Cid, Buffer]]:
        """See `Peer`. Raises also `AuthFailed`, `MalformedNode` for a page table that is not what it must be."""
        absent: list[Cid] = []
        leaves: dict[Cid, tuple[Cid, Place]] = {}
        for cid in cids:
            try:
                self._learn(cid)
            except BlockNotFound:
                absent.append(cid)
                continue
            if (node := self._table.node(cid)) is not None:
                yield cid, node
            elif (place := self._table.place(cid)) is not None:
                leaves[place.sealed] = cid, place
            else:
                absent.append(cid)
        try:
            for sealed, data in self._inner.read_many(list(leaves), heap_room) if leaves else ():
                leaf, place = leaves.pop(sealed)
                yield leaf, self._table.open(place, data, room)
        except BlockNotFound:
            absent += [leaf for leaf, _ in leaves.values()]
        if absent:
            raise not_held(self.name, absent)

    def read_dag(self, cid: Cid, room: Room) -> Iterator[tuple[Cid, Buffer]]:
        """See `Peer`. Streams what lies below a segment; of anything else, only that itself."""
        self._learn(cid)
        parts = self._table.parts(cid)
        if not parts:
            yield from self.read_many([cid], room)
        for part in parts:
            yield from part.nodes.items()
        for part in parts:
            inner = self._inner
            below = (
                inner.read_dag(part.pins, heap_room) if inner.has_dag else inner.read_many(list(part.leaves), heap_room)
            )
            for sealed, data in below:
                if (leaf := part.leaves.get(sealed)) is not None and (place := self._table.place(leaf)) is not None:
                    yield leaf, self._table.open(place, data, room)

    def _learn(self, cid: Cid) -> None:
        if names := self._table.unread_pages(cid):
            pages: dict[Cid, bytes] = {}
            for name, data in self._inner.get_many(names):
                pages[name] = bytes(data)
                if (size_bytes := sum(map(len, pages.values()))) > MAX_SEGMENT_PAGES_BYTES:
                    raise LimitExceeded(
                        f"the pages of segment {cid} have over {MAX_SEGMENT_PAGES_BYTES} bytes",
                        cid=str(cid), size_bytes=size_bytes,
                    )  # fmt: skip
            self._table.learn(cid, [pages[name] for name in names])

    def abort(self) -> None:
        """See `Peer`."""
        self._inner.abort()

    def close(self) -> None:
        """See `Peer`."""
        self._inner.close()
