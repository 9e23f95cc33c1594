"""The FORMAT file: what makes a folder a store, and of which version."""

import os
from pathlib import Path
from typing import Final

from ..database import disk_error
from ..errors import NotFound, UnsupportedFormat
from ..private import PRIVATE_FILE, make_private_folder
from .slab import sync_folder

FILE_NAME: Final = "FORMAT"
FORMAT: Final = "cyberkv store 1\n"


def open_folder(path: Path, *, read_only: bool) -> None:
    """Check a store's folder, or make it. Raises `NotFound`, `UnsupportedFormat`, `TierFull`."""
    if not read_only:
        try:
            make_private_folder(path)
        except FileExistsError:
            raise UnsupportedFormat(f"{path} is not a folder", hint="check --home", path=str(path)) from None
    # In this order: another process that makes the store now writes FORMAT before anything else.
    others = sorted(each.name for each in path.iterdir() if not each.name.startswith(".")) if path.is_dir() else []
    try:
        found = (path / FILE_NAME).read_bytes()[:64].decode(errors="replace")
    except FileNotFoundError:
        if read_only:
            raise NotFound(f"no store at {path}", hint="check --home", path=str(path)) from None
        if others:
            raise UnsupportedFormat(
                f"{path} holds {others[0]!r} and no {FILE_NAME} file: it is not a store",
                hint="choose an empty folder", path=str(path),
            ) from None  # fmt: skip
        _write(path)
        return
    if found != FORMAT:
        raise UnsupportedFormat(
            f"store {path} has format {found.strip()!r}, this program reads {FORMAT.strip()!r}",
            hint="a newer cyberkv may read it", path=str(path), expected=FORMAT.strip(), got=found.strip(),
        )  # fmt: skip


def _write(path: Path) -> None:
    temporary = path / f".{FILE_NAME}-{os.getpid()}"
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE), "w") as file:
            file.write(FORMAT)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path / FILE_NAME)
        sync_folder(path)
    except OSError as error:
        raise disk_error(path, error) from error
