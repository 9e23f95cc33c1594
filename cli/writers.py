"""Who else is writing to a home: for commands that need it alone, and have to say whom they wait for."""

import os
from pathlib import Path
from typing import Final

from ..cybergraph.errors import Refused
from ..cybergraph.store.lock import FILE_NAME
from .commands import COMMANDS
from .context import Session
from .served import served_pids

_PROCESSES: Final = Path("/proc")


def require_alone(session: Session, what: str) -> None:
    """Raise `Refused`, which names the other writers, unless this process alone has the store open to write."""
    with session.store.writers.alone() as alone:
        if alone:
            return
    pids = writers(session.home)
    urls = served_pids(session.home)
    named = [f"process {pid} ({_command(pid)}{f' at {urls[pid]}' if pid in urls else ''})" for pid in pids]
    first = "stop it" if any(pid in urls for pid in pids) else "wait until it is done"
    raise Refused(
        f"{' and '.join(named) or 'another process'} may be recording, fetching or publishing here; {what}",
        hint=f"nothing was changed; {first}, then run the same command again",
        processes=pids,
    )  # fmt: skip


def writers(home: Path) -> list[int]:
    """List the other processes that share the lock of writers, as far as this machine shows them."""
    lock, found = (home / "store" / FILE_NAME).resolve(), list[int]()
    for folder in _PROCESSES.glob("[0-9]*/fd"):
        pid = int(folder.parent.name)
        try:
            if pid != os.getpid() and any(file.readlink() == lock for file in folder.iterdir()):
                found.append(pid)
        except OSError:
            continue  # it has ended, or belongs to somebody else
    return sorted(found)


def _command(pid: int) -> str:
    """Name the command that a process runs, without the words it was given: they may be private."""
    try:
        words = (_PROCESSES / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        words = []
    command = next((word for word in words[1:] if word in COMMANDS), None)
    return f"cyberkv {command}" if command else "not a command of cyberkv"
