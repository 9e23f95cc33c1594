"""Another process whose changes to files can be counted, refused or cut short by a kill, one system call at a time.

The kernel does the work (seccomp user notification): before the process may change a file, it waits for a word from
here. So a fault can be put before every single change, those inside LMDB included, and no part is replaced by a double.
Needs Linux 5.5 and no privileges.
"""

import ctypes
import errno
import os
import platform
import select
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from fcntl import ioctl
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Final, NamedTuple

TIMEOUT_S: Final = 60

_NUMBERS: Final = {
    "x86_64": {
        "write": 1, "pwrite64": 18, "writev": 20, "fsync": 74, "fdatasync": 75, "ftruncate": 77, "rename": 82,
        "mkdir": 83, "link": 86, "unlink": 87, "openat": 257, "unlinkat": 263, "renameat": 264, "linkat": 265,
        "fallocate": 285, "pwritev": 296, "seccomp": 317, "pwritev2": 328,
    },
    "aarch64": {
        "mkdirat": 34, "unlinkat": 35, "linkat": 37, "renameat": 38, "ftruncate": 46, "fallocate": 47, "openat": 56,
        "write": 64, "writev": 66, "pwrite64": 68, "pwritev": 70, "fsync": 82, "fdatasync": 83, "seccomp": 277,
        "pwritev2": 287,
    },
}  # fmt: skip
NUMBERS: Final = _NUMBERS.get(platform.machine(), {})
_NAMES: Final = {number: name for name, number in NUMBERS.items() if name != "seccomp"}
_ON_A_FILE: Final = {
    "write",
    "pwrite64",
    "writev",
    "fsync",
    "fdatasync",
    "ftruncate",
    "fallocate",
    "pwritev",
    "pwritev2",
}

_PATH_AT: Final = {
    "mkdir": 0, "rename": 0, "link": 0, "unlink": 0,
    "openat": 1, "mkdirat": 1, "unlinkat": 1, "renameat": 1, "linkat": 1,
}  # fmt: skip
"""Which argument is the path."""
_MAKING: Final = {"openat", "mkdir", "mkdirat"}

_NOTIFICATION: Final = struct.Struct("=QIIiIQ6Q")
_ANSWER: Final = struct.Struct("=QqiI")
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_GO_ON: Final = 1
_SET_FILTER, _NEW_LISTENER, _NO_NEW_PRIVILEGES = 1, 8, 38

# A process is forked from a clean one that has the imports already, so it starts in milliseconds.
_CONTEXT: Final = get_context("forkserver")
_CONTEXT.set_forkserver_preload([f"tests.faults.{name}" for name in (
    "test_damage", "test_folders", "test_kill", "test_power", "test_processes", "operations",
)])  # fmt: skip


class Call(NamedTuple):
    """A change to a file that is about to happen."""

    name: str
    file_name: str
    """Last part of the file's path; empty where the call names no open file."""


Fault = int | None
"""Error number that a call gives instead of happening, `KILL`, or None to let it happen."""
KILL: Final = -signal.SIGKILL


@dataclass
class Ended:
    """How a process went."""

    calls: list[Call] = field(default_factory=list)
    said: list[object] = field(default_factory=list)
    """What it acknowledged, in order."""
    exit_code: int | None = None

    @property
    def killed(self) -> bool:
        return self.exit_code == -signal.SIGKILL


Work = Callable[[Path, Callable[[object], None]], None]
"""Works in a folder and says what it acknowledges. Importable, so that another process can run it."""


def at(number: int, fault: Fault) -> Callable[[Ended], Fault]:
    """Put a fault before one change, counted from 0."""
    return lambda ended: fault if len(ended.calls) == number + 1 else None


def run(work: Work, folder: Path, fault: Callable[[Ended], Fault] = lambda _: None) -> Ended:
    """Run `work` in another process and ask `fault` before each change of a file under `folder`.

    `fault` sees what was said so far and all calls, the coming one last.
    """
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_child, args=(theirs, work, folder, os.getpid()))
    process.start()
    theirs.close()
    ended = Ended()
    listener = recv_handle(ours)
    try:
        ours.send("go")
        poll, words = select.poll(), select.poll()
        words.register(ours, select.POLLIN)
        poll.register(listener, select.POLLIN)
        poll.register(process.sentinel, select.POLLIN)
        while process.sentinel not in (ready := dict(poll.poll(TIMEOUT_S * 1000))):
            assert ready, f"no word from the process in {TIMEOUT_S} s after {ended.calls[-3:]}"
            if ready[listener] & select.POLLIN:
                _hear(ours, words, ended)
                _answer(listener, folder, ended, fault)
            else:  # it is ending, and would be ready again and again until it has
                poll.unregister(listener)
        _hear(ours, words, ended)
    finally:
        os.close(listener)
        if sys.exc_info()[0]:
            process.kill()
        process.join(TIMEOUT_S)
        ended.exit_code = process.exitcode
        process.close()
        ours.close()
    return ended


def _hear(ours: Connection, words: select.poll, ended: Ended) -> None:
    with suppress(EOFError):
        while words.poll(0):
            ended.said.append(ours.recv())


def _answer(listener: int, folder: Path, ended: Ended, fault: Callable[[Ended], Fault]) -> None:
    try:
        data = ioctl(listener, _RECEIVE, bytes(_NOTIFICATION.size))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINTR):
            return  # the process is gone
        raise
    token, pid, _, number, _, _, *arguments = _NOTIFICATION.unpack(data)
    found: Fault = None
    if (call := _call(pid, _NAMES[number], arguments, folder)) is not None:
        ended.calls.append(call)
        found = fault(ended)
    if found == KILL:
        os.kill(pid, signal.SIGKILL)
        return
    answer = _ANSWER.pack(token, 0, 0, _GO_ON) if found is None else _ANSWER.pack(token, 0, -found, 0)
    try:
        ioctl(listener, _SEND, answer)
    except FileNotFoundError:
        return


def _call(pid: int, name: str, arguments: list[int], folder: Path) -> Call | None:
    """Say what a call changes, or None if it is no change of a file in the folder."""
    if name in _ON_A_FILE:
        path = os.readlink(f"/proc/{pid}/fd/{arguments[0]}")  # noqa: PTH115  # with `Path`, this was half of a test's time
    else:
        path = _path(pid, arguments[_PATH_AT[name]])
    if not f"{path}/".startswith(f"{folder}/") or (name in _MAKING and _is_there(path)):
        return None
    return Call(name, path.rpartition("/")[2])


def _is_there(path: str) -> bool:
    try:
        return Path(path).exists()
    except PermissionError:
        return True  # at least, nothing can be made there


def _path(pid: int, address: int) -> str:
    text = b""
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        # Page by page: a path may go on in the next one, and behind its end there may be none.
        while b"\0" not in text and (more := os.pread(memory, 4096 - (at := address + len(text)) % 4096, at)):
            text += more
    finally:
        os.close(memory)
    return os.fsdecode(text.partition(b"\0")[0])


def _child(theirs: Connection, work: Work, folder: Path, parent: int) -> None:
    sys.dont_write_bytecode = True
    listener = _listen()
    send_handle(theirs, listener, parent)
    os.close(listener)
    theirs.recv()
    work(folder, theirs.send)


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("first", ctypes.POINTER(_Instruction))]


def _listen() -> int:
    """Make this process ask before each call in the table, and give the descriptor on which it asks."""
    load, equal, both, give = 0x20, 0x15, 0x45, 0x06
    numbers = sorted(_NAMES)
    lines = [_Instruction(load, 0, 0, 0)]
    lines += [_Instruction(equal, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    lines += [_Instruction(give, 0, 0, 0x7FFF0000)]  # allow
    # An open that makes nothing goes on; the flags are the low half of the third argument.
    lines += [_Instruction(equal, 0, 2, NUMBERS["openat"]), _Instruction(load, 0, 0, 32)]
    lines += [_Instruction(both, 0, 1, os.O_CREAT), _Instruction(give, 0, 0, 0x7FC00000)]  # ask
    lines += [_Instruction(give, 0, 0, 0x7FFF0000)]
    program = _Program(len(lines), (_Instruction * len(lines))(*lines))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0:
        fd: int = libc.syscall(NUMBERS["seccomp"], _SET_FILTER, _NEW_LISTENER, ctypes.byref(program))
        if fd >= 0:
            return fd
    raise OSError(ctypes.get_errno(), "seccomp")
