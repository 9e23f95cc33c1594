"""The secret of an index. Prefix keys are filed under it, so that nobody can test guessed prompts without it.

It lies beside the index and not in it: whoever is given the folder of the index, or a copy of it, has no use for it.
"""

import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Final

from ..errors import Corrupt
from ..private import sync_folder, write_once

SECRET_BYTES: Final = 32
_WITNESS: Final = b"cyberkv/index-witness/v1"


def secret_path(index: Path) -> Path:
    """Name the file that holds the secret of the index in the folder `index`."""
    return index.with_name(f"{index.name}.secret")


def read_secret(path: Path) -> bytes | None:
    """Read a secret, or give None where there is no such file.

    Raises `Corrupt` for anything but 32 bytes, `OSError`.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as file:
        data = file.read(SECRET_BYTES + 1)
    if len(data) != SECRET_BYTES:
        raise Corrupt(f"{path} is no secret of an index", hint="bring the right one back, or move it away and run "
                      "`cyberkv index rebuild`", path=str(path))  # fmt: skip
    return data


def make_secret(path: Path) -> bytes:
    """Write a new secret, durably and private; of several who do so at once one wins. Gives the one that stands."""
    made = secrets.token_bytes(SECRET_BYTES)
    try:
        write_once(path, made)
    except FileExistsError:
        made = read_secret(path) or made
    sync_folder(path.parent)
    return made


def witness(secret: bytes) -> bytes:
    """Give what an index keeps to know its secret again; of a random secret it gives nothing away."""
    return hmac.digest(secret, _WITNESS, hashlib.sha256)
