"""Leave nothing of what was deleted in the files of a home, as far as writing over them does that.

A database keeps deleted rows in its free pages until something else is written there; free slots of slabs are made
holes by `gc`. That something was deleted and not written over yet is noted in a file of its own, so that a command that
was killed, or found no room, is made good for by the next.
"""

from pathlib import Path
from typing import Final

from ..index import Index
from ..private import write_private
from ..store.disk import DiskStore

FILE_NAME: Final = "traces"


class Traces:
    """What deleted things have left in one home."""

    def __init__(self, home: Path) -> None:
        """Use a file in `home`, which holds nothing and stands there while there are traces."""
        self._path = home / FILE_NAME

    @property
    def remain(self) -> bool:
        """Whether something was deleted and not written over."""
        return self._path.exists()

    def expect(self) -> None:
        """Note, before something is deleted, that it leaves traces."""
        if not self.remain:
            write_private(self._path, [], sync=True)

    def overwrite(self, *files: DiskStore | Index) -> None:
        """Write over what was deleted in `files`, which are all that hold traces.

        Takes the memory and, for a while, the room of the largest. Raises `TierFull`.
        """
        for each in files:
            each.overwrite_free()
        self._path.unlink(missing_ok=True)
