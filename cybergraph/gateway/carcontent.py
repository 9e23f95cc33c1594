"""A CAR file as something to show: the blocks of any codec that it holds, without importing them.

Each block is read from the file, and hashed, whenever it is asked for: a file that is changed meanwhile gives errors
and never wrong bytes.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from ..carindex import CarIndex, Progress
from ..carsection import Section
from ..cid import Buffer
from ..errors import BlockNotFound
from ..foreign import AnyCid, ForeignCid
from ..ipld import links_of
from ..staging import Room, heap_room, room_bytes
from .content import RUN_BYTES, Content, Run, Runs, require_bounded

_NODE_CODECS: Final = frozenset(("dag-cbor", "dag-json", "dag-pb"))


class CarContent(Content, AbstractContextManager["CarContent"]):
    """The blocks of one CAR file. Memory: 16 bytes a block."""

    def __init__(self, path: Path, progress: Progress = lambda done, total: None) -> None:  # noqa: ARG005
        """Open a file and go through it. Raises as `CarIndex`."""
        self.index = CarIndex(path, progress)

    def roots(self) -> list[AnyCid]:
        """List the roots that the header names and the file holds, in their order."""
        return list(self.index.roots)

    def size_bytes(self, cid: AnyCid) -> int | None:
        """See `Content`. Raises `Corrupt` where the file was changed since it was opened."""
        section = self.index.find(cid)
        return None if section is None else section.size_bytes

    def get(self, cid: AnyCid) -> bytes:
        """See `Content`."""
        if (section := self.index.find(cid)) is None:
            raise self._absent(cid)
        return bytes(self._read(cid, section, heap_room))

    def graph(self, root: AnyCid, *, dups: bool, room: Room = heap_room) -> Runs:
        """See `Content`. What a block links to and the file lacks is left out, and so are identity CIDs."""
        run: Run = []
        held_bytes = RUN_BYTES  # the root goes alone
        for cid, data in self._walk(root, dups=dups, room=room):
            run.append((cid, data))
            held_bytes += len(data) if cid.codec in _NODE_CODECS else room_bytes(len(data))
            del data  # or its memory would stay in use while the next block is read
            if held_bytes >= RUN_BYTES:
                yield run
                run, held_bytes = [], 0
        if run:
            yield run

    def edition(self, root: AnyCid) -> str:
        """See `Content`: another file may have what this one lacks."""
        if self.index.find(root) is None:
            raise self._absent(root)
        return self.index.edition if root.codec in _NODE_CODECS else ""

    def close(self) -> None:
        """Close the file. Blocks asked for afterwards are `Corrupt`."""
        self.index.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _walk(self, root: AnyCid, *, dups: bool, room: Room) -> Iterator[tuple[AnyCid, Buffer]]:
        seen: set[AnyCid] = set()
        ahead = [root]
        given = 0
        while ahead:
            cid = ahead.pop()
            if cid in seen or (cid is not root and _is_identity(cid)):
                continue
            if (section := self.index.find(cid)) is None:
                if cid is root:
                    raise self._absent(cid)
                continue
            if not dups:
                seen.add(cid)
            given += 1
            require_bounded(given, root)
            is_node = cid.codec in _NODE_CODECS
            data = self._read(cid, section, heap_room if is_node else room)
            if is_node:
                ahead.extend(reversed(links_of(cid, data)))
            yield cid, data
            del data

    def _read(self, cid: AnyCid, section: Section, room: Room) -> memoryview:
        """Read one block, checked. Raises `Corrupt`."""
        data = room(section.size_bytes)
        self.index.read_into([data], section.start)
        cid.verify(data)
        return data

    def _absent(self, cid: AnyCid) -> BlockNotFound:
        return BlockNotFound(f"{self.index.path} does not hold {cid}", cid=str(cid))


def _is_identity(cid: AnyCid) -> bool:
    return isinstance(cid, ForeignCid) and cid.hash_name == "identity"
