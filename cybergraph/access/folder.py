"""The access folder of a home: lineages given, the highest epoch seen of those received, and marks of visibility."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Final

from ..errors import AccessDenied, AuthFailed, Corrupt
from ..limits import MAX_NODE_BYTES
from ..nodes import Grant
from ..private import changing, make_private_folder, open_regular, write_private
from .lineage import Lineage
from .visibility import NO_MARKS, Marks

_GIVEN, _GIVING, _SEEN, _MARKS = "given", "giving", "seen", "marks"
_EPOCH_BYTES: Final = 8
_SEEN_BYTES: Final = _EPOCH_BYTES + 32
"""Epoch and commitment."""


class AccessFolder:
    """Small private files, each written whole. Of several processes, one at a time changes something."""

    def __init__(self, path: Path) -> None:
        """Use `path`, which is made when something is to be kept."""
        self._path = path

    def see(self, grant: Grant) -> None:
        """Remember a grant that opened. Raises as `check_seen`."""
        with changing(self._path):
            self.check_seen(grant)
            path = self._seen(grant)
            make_private_folder(path.parent)
            write_private(path, [grant.epoch.to_bytes(_EPOCH_BYTES, "big"), grant.commitment], sync=True)

    def check_seen(self, grant: Grant) -> None:
        """Compare a grant with what was seen of its lineage.

        Raises `AccessDenied` for an earlier epoch, which an old copy or a peer that holds back would give,
        `AuthFailed` for two keys of one epoch: then the issuer tells different readers different things, and `Corrupt`.
        """
        path = self._seen(grant)
        try:
            with open_regular(path) as file:
                row = file.read(_SEEN_BYTES + 1)
        except FileNotFoundError:
            return
        if len(row) != _SEEN_BYTES:  # taken as not seen, it would let an earlier epoch pass
            raise Corrupt(
                f"what is kept about the epochs of this conversation is damaged: {path.name}",
                hint=f"move {path} away to begin anew; an earlier epoch is then no longer noticed",
            )
        epoch, commitment = int.from_bytes(row[:_EPOCH_BYTES], "big"), row[_EPOCH_BYTES:]
        if grant.epoch < epoch:
            raise AccessDenied(
                f"this grant is of epoch {grant.epoch}, and epoch {epoch} of the same conversation was seen before",
                hint="ask for the new address; what was fetched before is still here", epoch=grant.epoch, seen=epoch,
            )  # fmt: skip
        if grant.epoch == epoch and grant.commitment != commitment:
            raise AuthFailed(
                f"two grants of epoch {epoch} commit to different keys: do not rely on who signed them", epoch=epoch
            )

    def giving(self) -> AbstractContextManager[None]:
        """Hold off others who give access, between reading a lineage and keeping what came of it.

        Else the last to write would undo what was done meanwhile, and a reader who was revoked be one again.
        """
        return changing(self._path / _GIVING)

    def keep(self, lineage: Lineage) -> None:
        """Store a lineage, in place of an earlier state of it."""
        with changing(self._path):
            path = self._given(lineage.name)
            make_private_folder(path.parent)
            write_private(path, [lineage.encode()], sync=True)

    def lineage(self, name: str) -> Lineage | None:
        """Give what is kept about a conversation. Raises `Corrupt` for a damaged file."""
        try:
            return _read(self._given(name))
        except FileNotFoundError:
            return None
        except Corrupt as error:
            raise Corrupt(
                f"what is kept about the access to {name} is damaged: {error}",
                hint=f"move {self._given(name)} away; readers have to be named again", name=name,
            ) from error  # fmt: skip

    def refile(self, name: str, new_name: str) -> bool:
        """Keep the lineage of a name under another, unless that has one, and say whether there was any.

        Whatever the name stands for next begins without readers. Raises as `lineage`.
        """
        if not self._given(name).exists():
            return False
        with self.giving(), changing(self._path):
            if (lineage := self.lineage(name)) is None:
                return False
            if not self._given(new_name).exists():
                write_private(self._given(new_name), [replace(lineage, name=new_name).encode()], sync=True)
            self._given(name).unlink()
            return True

    def lineages(self) -> Iterator[Lineage]:
        """List all that is given. Raises `Corrupt` for a damaged file."""
        for path in sorted((self._path / _GIVEN).glob("*")):
            if not path.name.startswith("."):
                yield _read(path)

    def marks(self) -> Marks:
        """Give the marks of the home. Raises `Corrupt` for a damaged file: then nobody knows what is private."""
        try:
            with open_regular(self._path / _MARKS) as file:
                return Marks.decode(file.read(MAX_NODE_BYTES + 1))
        except FileNotFoundError:
            return NO_MARKS
        except Corrupt as error:
            raise Corrupt(
                f"the marks of this home are damaged: {error}",
                hint=f"move {self._path / _MARKS} away, and mark again what is private", path=str(self._path / _MARKS),
            ) from error  # fmt: skip

    def change_marks(self, change: Callable[[Marks], Marks]) -> Marks:
        """Replace the marks by what `change` makes of them, and give those. Raises as `marks`."""
        with changing(self._path):
            before = self.marks()
            after = change(before)
            if after != before:
                write_private(self._path / _MARKS, [after.encode()], sync=True)
            return after

    def _given(self, name: str) -> Path:
        return self._path / _GIVEN / hashlib.sha256(name.encode()).hexdigest()[:32]  # a name is no path

    def _seen(self, grant: Grant) -> Path:
        return self._path / _SEEN / hashlib.sha256(grant.issuer + grant.lineage).hexdigest()[:32]


def _read(path: Path) -> Lineage:
    with open_regular(path) as file:
        return Lineage.decode(file.read(MAX_NODE_BYTES + 1))
