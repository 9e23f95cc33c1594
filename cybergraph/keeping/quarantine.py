"""Bad blocks, kept aside for whoever wants to know what happened to them. Nothing ever reads them back.

store/quarantine/<cid>    the bytes as they were found
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from ..cid import Cid
from ..errors import BlockNotFound, DigestMismatch, MalformedCid
from ..private import make_private_folder, write_private
from ..store.disk import DiskStore

FOLDER_NAME: Final = "quarantine"


def quarantine(store: DiskStore, cids: Iterable[Cid], *, unreadable: bool = False) -> list[Cid]:
    """Take those of `cids` that are damaged out of the store and keep their bytes aside; give them, in order.

    From then on such a block is not here: the next computation or fetch puts a sound one in its place. One that is
    sound by now stays, and without `unreadable` one whose bytes cannot all be read. Where the disk has no room for the
    bytes, they are let go.
    """
    taken = store.drop_damaged(cids, unreadable=unreadable)
    for cid, data in taken.items():
        _keep(store, cid, data)
    return list(taken)


def quarantine_malformed(store: DiskStore, cids: Iterable[Cid]) -> list[Cid]:
    """Take nodes out whose bytes are what their hash says and still no node, and keep those aside, too."""
    taken: list[Cid] = []
    for cid in cids:
        with suppress(BlockNotFound, DigestMismatch):  # gone, or damaged, since it was found
            _keep(store, cid, store.get(cid))
            taken.append(cid)
    store.delete_many(taken)
    return taken


def _keep(store: DiskStore, cid: Cid, data: bytes) -> None:
    folder = store.path / FOLDER_NAME
    if data:  # else its file is gone, and there is nothing to keep
        with suppress(OSError):
            make_private_folder(folder)
            write_private(folder / str(cid), [data], sync=False)


def quarantined(store: DiskStore) -> Iterator[tuple[Cid, Path]]:
    """List what is kept aside."""
    folder = store.path / FOLDER_NAME
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        with suppress(MalformedCid):
            yield Cid.parse(path.name), path
