"""What a gateway may show: blocks, singly or as a graph, from a home or from files.

A CID that was not published is absent here, even when the store holds it, and nothing tells the two apart.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, TypeAlias

from ..cid import Buffer, Cid
from ..errors import BlockNotFound, CyberKVError, LimitExceeded
from ..foreign import AnyCid
from ..index import Index
from ..limits import MAX_CAR_SECTIONS
from ..nodes import Conversation, Receipt, decode_node, links
from ..runs import read_runs
from ..staging import Room, heap_room
from ..store.base import Store, not_found

RUN_BYTES: Final = 2 << 20
"""Leaves of so many bytes are read in one go."""

Run: TypeAlias = list[tuple[AnyCid, Buffer]]
"""Blocks one after another, each with its bytes."""
Runs: TypeAlias = Iterator[Sequence[tuple[AnyCid, Buffer]]]


class Content(ABC):
    """Blocks that a server may show. Methods may be called from any thread, several at a time."""

    @abstractmethod
    def roots(self) -> list[AnyCid]:
        """List what to begin with, the newest first."""

    @abstractmethod
    def size_bytes(self, cid: AnyCid) -> int | None:
        """Give the length of a block that may be shown and is here, else None."""

    @abstractmethod
    def get(self, cid: AnyCid) -> bytes:
        """Give a block, checked against its CID. Raises `BlockNotFound`, `Corrupt`."""

    def peek(self, cid: AnyCid, count: int) -> bytes:
        """Give the first bytes of a block, for its kind and not to be handed on. Raises as `get`."""
        return self.get(cid)[:count]

    @abstractmethod
    def graph(self, root: AnyCid, *, dups: bool, room: Room = heap_room) -> Runs:
        """Walk depth first from `root`, without recursion, following every link to something that may be shown.

        Gives the root alone and then runs of about `RUN_BYTES`, checked against their CIDs, whose large blocks lie in
        memory from `room`. With `dups` a block comes each time it is linked. A link to something that may not be shown
        is left out. A block that should be here and is lost raises `BlockNotFound`, wrong bytes `Corrupt`, more than
        `MAX_CAR_SECTIONS` blocks `LimitExceeded`: with `dups` a few nodes may stand for any number. Memory: one run,
        and the CIDs seen.
        """

    @abstractmethod
    def edition(self, root: AnyCid) -> str:
        """Tell what `graph` gives below `root` now from what it may give at another time.

        Nothing where that is whole and the same for ever. Raises `BlockNotFound` where no block `root` may be shown.
        """


class Published(Content):
    """The part of a store that was published."""

    def __init__(self, store: Store, index: Index) -> None:
        self._store = store
        self._index = index
        self._created: dict[Cid, str] = {}

    def roots(self) -> list[AnyCid]:
        """List published roots that are here by the time they say they were made, the newest first."""
        here = [root for root in self._index.published() if self._store.has(root)]
        return [*sorted(here, key=lambda root: (self._time(root), root), reverse=True)]

    def size_bytes(self, cid: AnyCid) -> int | None:
        """Give the length of a published block that is here, else None."""
        return self._store.size_bytes(cid) if isinstance(cid, Cid) and self._index.is_public(cid) else None

    def get(self, cid: AnyCid) -> bytes:
        """Give a published block, verified. Raises `BlockNotFound`, `DigestMismatch`."""
        if not isinstance(cid, Cid) or not self._index.is_public(cid):
            raise _nobody_has(cid)
        return self._store.get(cid)

    def graph(self, root: AnyCid, *, dups: bool, room: Room = heap_room) -> Runs:
        """Walk what was published. A fork links to its parent, which may be private: such a link is left out."""
        if isinstance(root, Cid):
            walk = self._walk(root, dups=dups)
            yield from read_runs(self._store, islice(walk, 1), 1, room)
            yield from read_runs(self._store, walk, RUN_BYTES, room)

    def edition(self, root: AnyCid) -> str:
        """See `Content`: the first private block that something published links to, which may be published later."""
        if not isinstance(root, Cid) or not self._index.is_public(root):
            raise _nobody_has(root)
        beyond: Cid | None = root
        while beyond is not None and beyond.codec != "raw":
            cid = beyond
            try:
                data = self._store.get(cid)
                further = links(data)
            except CyberKVError:  # lost or damaged, and a stream will say so
                return str(cid)
            private = next((linked for linked in further if not self._index.is_public(linked)), None)
            if private is not None:
                return str(private)
            beyond = _published_apart(data)
        return ""

    def _walk(self, root: Cid, *, dups: bool) -> Iterator[tuple[Cid, bytes | None]]:
        """List what is reachable and published; nodes with their bytes."""
        seen: set[Cid] = set()
        ahead = [root]
        given = 0
        while ahead:
            cid = ahead.pop()
            if cid in seen or not self._index.is_public(cid):
                continue
            if not dups:
                seen.add(cid)
            given += 1
            require_bounded(given, root)
            if cid.codec == "raw":
                yield cid, None
                continue
            node = self._store.get(cid)
            ahead.extend(reversed(links(node)))
            yield cid, node

    def _time(self, root: Cid) -> str:
        if root not in self._created:
            try:
                node = decode_node(self._store.get(root))
            except CyberKVError:  # lost or damaged meanwhile
                return ""
            if isinstance(node, Receipt):  # it stands beside what it signs
                return self._time(node.root)
            self._created[root] = node.created if isinstance(node, Conversation) else ""
        return self._created[root]


class Several(Content):
    """Contents side by side: each block comes from the first that has it."""

    def __init__(self, contents: Sequence[Content]) -> None:
        self._contents = tuple(contents)

    def roots(self) -> list[AnyCid]:
        """List the roots of all, those of the first before those of the second, each once."""
        return list(dict.fromkeys(root for content in self._contents for root in content.roots()))

    def size_bytes(self, cid: AnyCid) -> int | None:
        """Give the length of a block that one of them has, else None."""
        found = (content.size_bytes(cid) for content in self._contents)
        return next((size_bytes for size_bytes in found if size_bytes is not None), None)

    def get(self, cid: AnyCid) -> bytes:
        """Give a block. Raises `BlockNotFound` where none has it, `Corrupt` where the first that has it is damaged."""
        return self._with(cid).get(cid)

    def graph(self, root: AnyCid, *, dups: bool, room: Room = heap_room) -> Runs:
        """Walk in the first that has the root, and in that alone."""
        yield from self._with(root).graph(root, dups=dups, room=room)

    def edition(self, root: AnyCid) -> str:
        """See `Content`."""
        return self._with(root).edition(root)

    def _with(self, cid: AnyCid) -> Content:
        for content in self._contents:
            if content.size_bytes(cid) is not None:
                return content
        raise _nobody_has(cid)


def require_bounded(given: int, root: AnyCid) -> None:
    """Raise `LimitExceeded` where a walk has given more blocks than a CAR file may have."""
    if given > MAX_CAR_SECTIONS:
        raise LimitExceeded(f"more than {MAX_CAR_SECTIONS} blocks below {root}", cid=str(root))


def _published_apart(data: bytes) -> Cid | None:
    """Give the one link of a node to something that is published by itself; all else is published with the node."""
    try:
        node = decode_node(data)
    except CyberKVError:  # of another kind
        return None
    if isinstance(node, Conversation):
        return node.parent
    return node.root if isinstance(node, Receipt) else None


def _nobody_has(cid: AnyCid) -> BlockNotFound:
    return not_found(cid) if isinstance(cid, Cid) else BlockNotFound(f"no block {cid} here", cid=str(cid))
