"""Give back what nobody needs: blocks that no name, log, publication or pin reaches, and the files that held them."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ..cid import Cid
from ..errors import BlockNotFound, Corrupt, Refused, UnsupportedFormat
from ..index import Index
from ..nodes import Conversation, decode_node
from ..store.catalog import Place
from ..store.disk import DiskStore
from ..survey import NODE_PREFIX
from .punch import punch
from .quarantine import quarantined
from .reach import kept

DELETE_BLOCKS: Final = 4096
"""Blocks deleted in one transaction."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """Blocks that nobody needs."""

    nodes: list[Cid]
    leaves: list[Cid]
    conversations: dict[Cid, Conversation]
    """Those of the nodes that are roots."""
    bytes: int
    """Room they take: whole slots, and nodes as long as they are."""
    needed: set[Cid]
    """All that is needed, here or not."""
    kept_blocks: int
    kept_bytes: int


@dataclass(slots=True)
class Swept:
    """What became of files."""

    freed_bytes: int = 0
    """Disk space given back."""
    undeletable: dict[Path, str] = field(default_factory=dict)
    """Files that could not be made smaller or removed, with the reason. They cost room and nothing else."""


def find_garbage(store: DiskStore, index: Index) -> Garbage:
    """List what nobody needs. Reads every node, no leaves.

    While another process writes, blocks on their way to a root are listed too. Raises `BlockNotFound` or `Corrupt`
    where a node in use is absent or damaged: what hangs below it cannot be told from garbage.
    """
    try:
        needed = kept(store, index.roots())
    except (BlockNotFound, Corrupt) as error:
        raise type(error)(
            f"nothing was collected: what is needed cannot be told, because {error.message}",
            hint="`cyberkv fsck --repair`, then fetch what is lacking, or `cyberkv forget` the conversation",
            **error.data,
        ) from error
    sizes = {cid: place.slab.slot_bytes for cid, place in store.leaves()}
    sizes |= {cid: store.size_bytes(cid) or 0 for cid in store.cids(NODE_PREFIX)}
    garbage = sorted(sizes.keys() - needed)
    garbage_bytes = sum(sizes[cid] for cid in garbage)
    conversations: dict[Cid, Conversation] = {}
    for cid in garbage:
        with suppress(BlockNotFound, Corrupt, UnsupportedFormat):
            if cid.codec != "raw" and isinstance(node := decode_node(store.get(cid)), Conversation):
                conversations[cid] = node
    return Garbage(
        conversations=conversations,
        nodes=[cid for cid in garbage if cid.codec != "raw"], leaves=[cid for cid in garbage if cid.codec == "raw"],
        bytes=garbage_bytes, needed=needed,
        kept_blocks=len(sizes) - len(garbage), kept_bytes=sum(sizes.values()) - garbage_bytes,
    )  # fmt: skip


def collect(
    store: DiskStore, index: Index, leaving: Callable[[Garbage], None] = lambda _: None
) -> tuple[Garbage, Swept]:
    """Delete what nobody needs and shrink the files. Call it while this process builds towards no root itself.

    `leaving` is told of the garbage before any of it goes, and may raise: then nothing does.
    The index lets go of a block before the store does, so a kill at any point leaves nothing that names what is gone.
    Raises `Refused` while another process writes, and as `find_garbage`; then nothing is deleted.
    """
    with store.writers.alone() as alone:
        if not alone:
            raise busy()
        garbage = find_garbage(store, index)
        leaving(garbage)
        index.remove_blocks(garbage.nodes)
        doomed = garbage.leaves + garbage.nodes
        for start in range(0, len(doomed), DELETE_BLOCKS):
            store.delete_many(doomed[start : start + DELETE_BLOCKS])
        return garbage, _sweep(store, garbage.needed)


def busy() -> Refused:
    """Build the error for a store that another process writes to."""
    return Refused(
        "another process is recording, fetching or publishing here; what it still needs cannot be told from garbage",
        hint="nothing was changed; run it again when that is done",
    )


def _sweep(store: DiskStore, needed: set[Cid]) -> Swept:
    """Take free slots out of the slabs, and remove what killed processes left and what quarantine need not keep.

    A slab is cut and never removed: a reader that has it open must meet the leaves that come into it later.
    """
    swept = Swept()
    used: dict[str, list[Place]] = {}
    for _, place in store.leaves():
        used.setdefault(place.slab.file_name, []).append(place)
    for path in sorted(store.path.glob("slab-*.kvd")):
        with _noted(swept, path):
            _shrink(path, sorted(used.get(path.name, ())))
    stale = [path for cid, path in quarantined(store) if cid not in needed or store.has(cid)]
    for path in [*filter(Path.is_file, store.path.glob(".*")), *stale]:
        with _noted(swept, path):
            path.unlink()
    return swept


@contextmanager
def _noted(swept: Swept, path: Path) -> Iterator[None]:
    """Count what the work inside the `with` frees. A file that resists it is noted, and the others have their turn."""
    try:
        before_bytes = _disk_bytes(path)
        yield
        swept.freed_bytes += max(0, before_bytes - _disk_bytes(path))
    except OSError as error:
        swept.undeletable[path] = str(error.strerror)


def _disk_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512 if path.exists() else 0


def _shrink(path: Path, used: list[Place]) -> None:
    """Cut a slab behind its last leaf and make holes of its free slots."""
    end = used[-1].offset + used[-1].slab.slot_bytes if used else 0
    if path.stat().st_size > end:
        os.truncate(path, end)
    with path.open("r+b") as file:
        at = 0
        for place in used:
            if place.offset > at:
                punch(file.fileno(), at, place.offset - at)
            at = place.offset + place.slab.slot_bytes
