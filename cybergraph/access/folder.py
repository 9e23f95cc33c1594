"""The access folder of a home: lineages given, the highest epoch seen of each, and marks of visibility."""

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from ..errors import AccessDenied, AuthFailed, Corrupt, MalformedNode, Refused
from ..limits import MAX_NODE_BYTES
from ..nodes import Grant
from ..private import PRIVATE_FILE, changing, make_private_folder, open_regular, write_private
from .lineage import Lineage
from .visibility import NO_MARKS, Marks

_GIVEN, _GRANTS, _GIVING, _SEEN, _MARKS = "given", "grants", "giving", "seen", "marks"
_EPOCH_BYTES: Final = 8
_SEEN_BYTES: Final = _EPOCH_BYTES + 32
"""Epoch and commitment."""


class AccessFolder:
    """Small private files, each written whole. Of several processes, one at a time changes something."""

    def __init__(self, path: Path, waits: Callable[[], None] = lambda: None) -> None:
        """Use `path`, which is made when something is to be kept; `waits` is called when another holds it up."""
        self._path = path
        self._waits = waits

    def see(self, grant: Grant) -> None:
        """Remember a grant that opened. Raises as `check_seen`."""
        with changing(self._path):
            self.check_seen(grant)
            path = self._path / _SEEN / _seen_name(grant.issuer, grant.lineage)
            make_private_folder(path.parent)
            write_private(path, [grant.epoch.to_bytes(_EPOCH_BYTES, "big"), grant.commitment], sync=True)

    def check_seen(self, grant: Grant) -> None:
        """Compare a grant with what was seen of its lineage.

        Raises `AccessDenied` for an earlier epoch, which an old copy or a peer that holds back would give,
        `AuthFailed` for two keys of one epoch: then the issuer tells different readers different things, and `Corrupt`.
        """
        if (row := self._seen_row(grant.issuer, grant.lineage)) is None:
            return
        epoch, commitment = row
        if grant.epoch < epoch:
            raise AccessDenied(
                f"this grant is of epoch {grant.epoch}, and epoch {epoch} of the same conversation was seen before",
                hint="ask for the new address; what was fetched before is still here", epoch=grant.epoch, seen=epoch,
            )  # fmt: skip
        if grant.epoch == epoch and grant.commitment != commitment:
            raise AuthFailed(
                f"two grants of epoch {epoch} commit to different keys: do not rely on who signed them", epoch=epoch
            )

    def seen_epoch(self, lineage: Lineage) -> int:
        """Give the highest epoch that was granted or received of a lineage, 0 for none. Raises `Corrupt`."""
        row = self._seen_row(lineage.issuer, lineage.lineage)
        return 0 if row is None else row[0]

    def check_newest(self, lineage: Lineage) -> None:
        """Check that a lineage is no old copy that was put back: under it an epoch would get a second key.

        Raises `Refused`, `Corrupt`.
        """
        row = self._seen_row(lineage.issuer, lineage.lineage)
        if row is None or lineage.epoch > row[0] or row == (lineage.epoch, lineage.commitment):
            return
        raise Refused(
            f"what is kept about the access to {lineage.name} is an old copy: it ends with epoch {lineage.epoch}, and "
            f"epoch {row[0]} was granted already",
            hint=f"put the newer copy back; or `cyberkv grant list` shows who would have access, without what was "
            f"changed since, and `cyberkv grant rotate` begins epoch {row[0] + 1} for them",
            name=lineage.name, epoch=lineage.epoch, seen=row[0],
        )  # fmt: skip

    @contextmanager
    def giving(self) -> Iterator[None]:
        """Hold off others who give access, between reading a lineage and keeping what came of it.

        Else the last to write would undo what was done meanwhile, and a reader who was revoked be one again.
        """
        make_private_folder(self._path / _GIVING)
        fd = os.open(self._path / _GIVING / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._waits()
                fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def keep(self, lineage: Lineage) -> None:
        """Store a lineage, in place of an earlier state of it."""
        with changing(self._path):
            path = self._path / _GIVEN / _file_name(lineage.name)
            make_private_folder(path.parent)
            write_private(path, [lineage.encode()], sync=True)

    def keep_published(self, lineage: Lineage, grant: Grant) -> None:
        """Store a lineage together with the grant of what is published last, before anybody gets it.

        Its epoch then counts as seen. Raises as `check_seen`.
        """
        self.see(grant)
        with changing(self._path):
            path = self._path / _GRANTS / _file_name(lineage.name)
            make_private_folder(path.parent)
            write_private(path, [grant.encode()], sync=True)
        self.keep(lineage)

    def grant(self, lineage: Lineage) -> Grant | None:
        """Give the grant of what was published last; None if it is not here: then another has to be signed."""
        if lineage.last is None:
            return None
        try:
            with open_regular(self._path / _GRANTS / _file_name(lineage.name)) as file:
                return Grant.decode(file.read(MAX_NODE_BYTES + 1), verify=lineage.last.grant)
        except (FileNotFoundError, Corrupt):
            return None

    def lineage(self, name: str) -> Lineage | None:
        """Give what is kept about a conversation. Raises `Corrupt` for a damaged file."""
        try:
            found = self._read(self._path / _GIVEN / _file_name(name), name)
        except FileNotFoundError:
            return None
        return found

    def refile(self, name: str, new_name: str) -> bool:
        """Keep the lineage of a name under another, unless that has one, and say whether there was any.

        Whatever the name stands for next begins without readers. Raises as `lineage`.
        """
        old, new = (self._path / _GIVEN / _file_name(each) for each in (name, new_name))
        if not old.exists():
            return False
        with self.giving(), changing(self._path):
            if (lineage := self.lineage(name)) is None:
                return False
            grant = self._path / _GRANTS / old.name
            if not new.exists():
                if grant.exists():
                    grant.replace(grant.with_name(new.name))
                write_private(new, [replace(lineage, name=new_name).encode()], sync=True)
            old.unlink()
            return True

    def lineages(self) -> Iterator[Lineage]:
        """List all that is given. Raises `Corrupt` for a damaged file."""
        for path in sorted((self._path / _GIVEN).glob("*")):
            if not path.name.startswith("."):
                yield self._read(path)

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

    def _read(self, path: Path, name: str | None = None) -> Lineage:
        try:
            with open_regular(path) as file:
                lineage = Lineage.decode(file.read(MAX_NODE_BYTES + 1))
            if _file_name(lineage.name) != path.name:
                raise MalformedNode("it is about another conversation", field="name")
        except Corrupt as error:
            raise Corrupt(
                f"what is kept about the access to {name or 'a conversation'} is damaged: {error}",
                hint=f"put a copy of {path} back, or move it away: readers then have to be named again",
                path=str(path), **({"name": name} if name else {}),
            ) from error  # fmt: skip
        return lineage

    def _seen_row(self, issuer: bytes, lineage: bytes) -> tuple[int, bytes] | None:
        """Give the highest epoch that was seen of a lineage, and what its grants commit to. Raises `Corrupt`."""
        path = self._path / _SEEN / _seen_name(issuer, lineage)
        try:
            with open_regular(path) as file:
                row = file.read(_SEEN_BYTES + 1)
        except FileNotFoundError:
            return None
        if len(row) != _SEEN_BYTES:  # taken as not seen, it would let an earlier epoch pass
            raise Corrupt(
                f"what is kept about the epochs of this conversation is damaged: {path.name}",
                hint=f"move {path} away to begin anew; an earlier epoch is then no longer noticed",
            )
        return int.from_bytes(row[:_EPOCH_BYTES], "big"), row[_EPOCH_BYTES:]


def _file_name(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:32]  # a name is no path


def _seen_name(issuer: bytes, lineage: bytes) -> str:
    return hashlib.sha256(issuer + lineage).hexdigest()[:32]
