"""Go through every page of databases in a process of its own: `python -m cyberkv.cybergraph.probe FOLDER…`.

LMDB trusts its pages. One whose bytes were changed on the disk can make it end the whole process, by an assertion or by
a read outside its map, which nothing inside the process can catch. Whoever calls `probe` first learns it as an error.
"""

import os
import resource
import subprocess
import sys
from pathlib import Path

import lmdb

from .errors import Corrupt


def probe(*folders: Path) -> None:
    """Read everything in the databases in `folders`, as far as there are any.

    Raises `Corrupt` where that ends a process; what LMDB reports as an error is left to whoever opens the database.
    """
    if len(folders) > 1 and _exit_code(*folders) == 0:  # one process for all; who ended it is asked one by one
        return
    for folder in folders:
        code = _exit_code(folder)
        if code >= 0:
            continue
        raise Corrupt(
            f"the database in {folder} is damaged: reading it ends the process with signal {-code}",
            hint="move it away: `cyberkv index rebuild` makes a new index, a store is fetched again", path=str(folder),
        )  # fmt: skip


def reads_whole(folder: Path) -> bool:
    """Say whether everything in the database in `folder` can be read."""
    return _exit_code(folder) == 0


def _exit_code(*folders: Path) -> int:
    return subprocess.run(
        [sys.executable, "-P", "-m", __name__, *folders], check=False, capture_output=True, stdin=subprocess.DEVNULL
    ).returncode


def _read_all(folder: str) -> None:
    with lmdb.open(folder, max_dbs=16, readonly=True, create=False) as environment, environment.begin() as txn:
        tables = [environment.open_db(bytes(name), txn=txn, create=False) for name, _ in txn.cursor()]
        for table in tables:
            for _ in txn.cursor(table):
                pass
    with (
        lmdb.open(folder, max_dbs=16, readonly=True, create=False) as environment,
        Path(os.devnull).open("wb") as nowhere,
    ):
        environment.copyfd(nowhere.fileno(), compact=True)  # goes through the list of free pages, too


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        for folder in sys.argv[1:]:
            _read_all(folder)
    except lmdb.Error as error:
        sys.exit(str(error))
