"""Folders and files that only their owner may read: blocks, tokens and names are the text of conversations."""

from pathlib import Path
from typing import Final

PRIVATE_FOLDER: Final = 0o700
PRIVATE_FILE: Final = 0o600


def make_private_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, private; one that is there stays as it is.

    Raises `FileExistsError` where something else has the name.
    """
    if not path.exists():
        make_private_folder(path.parent)
    path.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
