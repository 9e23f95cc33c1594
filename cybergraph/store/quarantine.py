"""Damaged blocks, kept aside for whoever wants to know what happened to them. Nothing ever reads them back.

store/quarantine/<cid>    the bytes as they were found
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..cid import Cid
from ..errors import MalformedCid
from ..private import make_private_folder, write_private

if TYPE_CHECKING:
    from .disk import DiskStore

FOLDER_NAME: Final = "quarantine"


def quarantine(store: "DiskStore", cids: Iterable[Cid]) -> list[Cid]:
    """Take those of `cids` that are damaged out of the store and keep their bytes aside; give them, in order.

    From then on such a block is not here: the next computation or fetch puts a sound one in its place. One that is
    sound by now stays. Where the disk has no room for the bytes, they are let go.
    """
    taken = store.drop_damaged(cids)
    folder = store.path / FOLDER_NAME
    for cid, data in taken.items():
        with suppress(OSError):
            make_private_folder(folder)
            write_private(folder / str(cid), [data], sync=False)
    return list(taken)


def quarantined(store: "DiskStore") -> Iterator[tuple[Cid, Path]]:
    """List what is kept aside."""
    folder = store.path / FOLDER_NAME
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        with suppress(MalformedCid):
            yield Cid.parse(path.name), path
