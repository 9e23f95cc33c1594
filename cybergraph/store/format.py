"""The FORMAT file: what makes a folder a store, and of which version.

Version 1 wrote down which slots were free; version 2 derives it. The blocks lie as they did, so a store of
version 1 is read as it is, and the first writer only changes FORMAT: a program of version 1 would go on to
trust its own, then outdated, list of free slots.

FORMAT is written when the catalogue is there, with the stamp of its slots. So a store that has FORMAT and no stamp has
lost its catalogue, and is not taken for a new one.
"""

from pathlib import Path
from typing import Final

from ..diskerrors import disk_errors
from ..errors import NotFound, UnsupportedFormat
from ..private import make_private_folder, open_regular, write_private

FILE_NAME: Final = "FORMAT"
CATALOG_NAME: Final = "catalog"
FORMAT: Final = "cyberkv store 2\n"
OLDER_FORMATS: Final = ("cyberkv store 1\n",)


def open_folder(path: Path, *, read_only: bool) -> str | None:
    """Check a store's folder, made if need be, and give its format: None where nobody has made a store yet.

    Raises `NotFound`, `UnsupportedFormat`, `TierFull`.
    """
    with disk_errors(path):
        if not read_only:
            try:
                make_private_folder(path)
            except FileExistsError:
                raise UnsupportedFormat(f"{path} is not a folder", hint="check --home", path=str(path)) from None
        # In this order: another process that makes the store now writes FORMAT before any slab.
        names = sorted(each.name for each in path.iterdir()) if path.is_dir() else []
        others = [name for name in names if not name.startswith(".") and name != CATALOG_NAME]
        try:
            with open_regular(path / FILE_NAME) as file:
                found = file.read(64).decode(errors="replace")
        except FileNotFoundError:
            if read_only:
                raise NotFound(f"no store at {path}", hint="check --home", path=str(path)) from None
            if others:
                raise UnsupportedFormat(
                    f"{path} holds {others[0]!r} and no {FILE_NAME} file: it is not a store",
                    hint="choose an empty folder", path=str(path),
                ) from None  # fmt: skip
            return None
    if found not in (FORMAT, *OLDER_FORMATS):
        raise UnsupportedFormat(
            f"store {path} has format {found.strip()!r}, this program reads {FORMAT.strip()!r}",
            hint="a newer cyberkv may read it", path=str(path), expected=FORMAT.strip(), got=found.strip(),
        )  # fmt: skip
    return found


def write_format(path: Path) -> None:
    """Say that the folder is a store of this version, durably. Raises `TierFull`."""
    with disk_errors(path):
        write_private(path / FILE_NAME, [FORMAT.encode()], sync=True)
