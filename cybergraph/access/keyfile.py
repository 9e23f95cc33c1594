"""Secret keys on disk: a file each, readable by its owner alone, whole or not there, optionally under a passphrase."""

import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Final

from ..errors import BadKey, BadReference, Corrupt, NameNotFound, Refused
from ..nodes.base import Nested, Node
from ..nodes.kinds import Bytes, Maybe
from ..private import make_private_folder, sync_folder, write_once
from .identity import SEED_BYTES, Identity
from .passphrase import Lock, lock, unlock

SUFFIX: Final = ".key"
MAX_FILE_BYTES: Final = 4096
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_PURPOSE: Final = "key"


@dataclass(frozen=True, slots=True)
class KeyFile(Node):
    """What stands in the file: the seed, or a lock around it."""

    seed: Annotated[bytes | None, Maybe(Bytes(SEED_BYTES))]
    lock: Annotated[Lock | None, Maybe(Nested(Lock))]

    TYPE: ClassVar = "cyberkv/key"

    def __repr__(self) -> str:
        return "KeyFile(...)"


def save_key(folder: Path, name: str, identity: Identity, passphrase: str | None) -> Path:
    """Write a new key, durably. Of several who do so at once one wins.

    Raises `BadReference` for a name of another form, `Refused` where the name is taken, `BadKey` for a folder that
    others may read.
    """
    path = _path(folder, name)
    try:
        make_private_folder(folder)
    except (FileExistsError, NotADirectoryError) as error:
        raise BadKey(f"{folder.name} is no plain file or folder", name=folder.name) from error
    _check_private(folder, os.lstat(folder), stat.S_ISDIR)
    try:
        write_once(path, key_bytes(identity, passphrase))
    except FileExistsError as error:
        raise Refused(
            f"there is a key {name} already", hint="choose another name: a key cannot be made again", name=name
        ) from error
    sync_folder(folder)
    return path


def load_key(folder: Path, name: str, passphrase: str | None) -> Identity:
    """Read a key.

    Raises `NameNotFound`; `BadKey` for a file that others may read, of another owner, damaged, or locked by another
    passphrase.
    """
    return opened(_read(folder, name), name, passphrase)


def key_bytes(identity: Identity, passphrase: str | None) -> bytes:
    """Give what stands in a key file."""
    if passphrase is None:
        return KeyFile(identity.reveal(), None).encode()
    return KeyFile(None, lock(identity.reveal(), passphrase, _PURPOSE)).encode()


def opened(content: KeyFile, name: str, passphrase: str | None) -> Identity:
    """Give the key that a file holds. Raises `BadKey`."""
    if content.lock is not None:
        if passphrase is None:
            raise BadKey(f"the key {name} has a passphrase", hint="it is asked for on a terminal", name=name)
        return Identity(unlock(content.lock, passphrase, _PURPOSE))
    if content.seed is None:
        raise BadKey(f"the key {name} holds nothing", name=name)
    return Identity(content.seed)


def is_locked(folder: Path, name: str) -> bool:
    """Say whether a key has a passphrase. Raises as `load_key`."""
    return _read(folder, name).lock is not None


def key_names(folder: Path) -> Iterator[str]:
    """List the keys, by name."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        if _NAME.fullmatch(path.stem):
            yield path.stem


def _path(folder: Path, name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise BadReference(f"not a name for a key: {name!r:.80}", hint="letters a-z, digits and hyphens, at most 63")
    return folder / f"{name}{SUFFIX}"


def _read(folder: Path, name: str) -> KeyFile:
    path = _path(folder, name)
    try:
        _check_private(folder, os.lstat(folder), stat.S_ISDIR)
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NameNotFound(f"no key {name}", hint="`cyberkv key new` makes one", name=name) from error
    except OSError as error:
        raise BadKey(f"the key {name} cannot be read: {error.strerror}", name=name) from error
    with os.fdopen(fd, "rb") as file:
        _check_private(path, os.fstat(fd), stat.S_ISREG)
        data = file.read(MAX_FILE_BYTES)
    try:
        return KeyFile.decode(data)
    except Corrupt as error:
        raise BadKey(f"the key {name} is damaged: {error}", name=name) from error


def _check_private(path: Path, found: os.stat_result, is_kind: Callable[[int], bool]) -> None:
    """Refuse what others could have written or may read."""
    if not is_kind(found.st_mode):
        raise BadKey(f"{path.name} is no plain file or folder", name=path.name)
    if found.st_uid != os.geteuid():
        raise BadKey(f"{path.name} belongs to another user", name=path.name, owner=found.st_uid)
    if found.st_mode & 0o077:
        raise BadKey(
            f"{path.name} is open to others (mode {stat.S_IMODE(found.st_mode):o})",
            hint="`chmod -R go= FOLDER` closes it; if anybody may have read it, make a new key", name=path.name,
        )  # fmt: skip
