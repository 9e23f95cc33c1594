"""A program as a process of its own, without the seconds that imports take: forked from one that has done them.

It has its own arguments, environment, streams, signals and exit code. What is about how the program begins and ends, or
about what it imports, starts an interpreter itself.
"""

import atexit
import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from pathlib import Path
from runpy import run_module
from subprocess import DEVNULL
from traceback import print_exc
from typing import IO, Any, Final, Self

TOP: Final = Path(__file__).parents[1]
_MOST_BYTES: Final = 1 << 17
"""Longest command line with its environment."""
_SHOWN_BYTES: Final = 1 << 10
"""Most that others see of a command line."""
_STREAMS: Final = (0, 1, 2)
_NUMBER: Final = 4
_IMPORTED: Final = (
    "torch", "uvicorn", "uvicorn.lifespan.off", "uvicorn.loops.auto", "cyberkv.cli.main", "cyberkv.cli.serve",
    "cyberkv.cli.chat", "cyberkv.cli.recording", "cyberkv.cybergraph.gateway.front",
    "cyberkv.cybergraph.gateway.metrics", "cyberkv.cybergraph.gateway.pages", "cyberkv.cybergraph.keeping.room",
    "cyberkv.cybergraph.peers", "cyberkv.cybergraph.transfer", "cyberkv.runtime.engine",
    "cyberkv.runtime.models.registry", "cyberkv.runtime.models.tokenizer", "cyberkv.runtime.models.weights",
    "cyberkv.runtime.selected", "cyberkv.runtime.serving.app", "cyberkv.runtime.splice",
)  # fmt: skip


class Forked:
    """A running `python -m MODULE LINE`, used as a `subprocess.Popen` is.

    Its streams carry text or, without `text`, bytes. With a `terminal`, they are that one, and nobody reads them here.
    """

    def __init__(
        self, line: Sequence[object], *, module: str = "cyberkv.cli", stdin: int = DEVNULL, text: bool = True,
        terminal: int | None = None,
    ) -> None:  # fmt: skip
        self.returncode: int | None = None
        self.stdin: IO[Any] | None = None
        ours_in, theirs_in = (None, os.open(os.devnull, os.O_RDONLY)) if stdin == DEVNULL else os.pipe()[::-1]
        ours_out, theirs_out = os.pipe()
        ours_err, theirs_err = os.pipe()
        if terminal is not None:
            for fd in (theirs_in, theirs_out, theirs_err):
                os.dup2(terminal, fd)
        how = "" if text else "b"
        if ours_in is not None:
            self.stdin = os.fdopen(ours_in, f"w{how}")
        self.stdout: IO[Any] = os.fdopen(ours_out, f"r{how}")
        self.stderr: IO[Any] = os.fdopen(ours_err, f"r{how}")
        self._status, theirs = socket.socketpair()
        work = json.dumps([Path.cwd().as_posix(), dict(os.environ), module, [str(word) for word in line]]).encode()
        with theirs:
            socket.send_fds(_origin(), [work], [theirs_in, theirs_out, theirs_err, theirs.fileno()])
        for fd in (theirs_in, theirs_out, theirs_err):
            os.close(fd)
        self.pid = self._number()

    def _number(self) -> int:
        return int.from_bytes(self._status.recv(_NUMBER, socket.MSG_WAITALL), "little", signed=True)

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def wait(self, timeout_s: float | None = None) -> int:
        if self.returncode is None:
            self._status.settimeout(timeout_s)
            self.returncode = self._number()
            self._status.close()
        return self.returncode

    def communicate(self, said: Any = None) -> tuple[Any, Any]:
        """Say something, read both streams to their ends, and wait."""
        with ThreadPoolExecutor(1) as pool:
            told = pool.submit(self.stderr.read)
            if self.stdin is not None and not self.stdin.closed:
                if said:
                    self.stdin.write(said)
                self.stdin.close()
            both = self.stdout.read(), told.result()
        self.__exit__()
        return both

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


@cache
def _origin() -> socket.socket:
    """Start the process that the others are forked from; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fd = theirs.fileno()
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(fd), " " * _SHOWN_BYTES],
        cwd=TOP, pass_fds=[fd], stdin=DEVNULL, start_new_session=True,
    )  # fmt: skip
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _become(asked: socket.socket) -> str:
    """Give the module to run in each process that is to run one as if started so; end with whoever asks."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        work, fds, *_ = socket.recv_fds(asked, _MOST_BYTES, len(_STREAMS) + 1)
        if not work:
            os._exit(0)
        if os.fork() == 0:
            break
        for fd in fds:
            os.close(fd)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    asked.close()
    *streams, status = fds
    if pid := os.fork():  # this one hears how the other ends
        for fd in (*streams, *_STREAMS):
            os.close(fd)
        os.write(status, pid.to_bytes(_NUMBER, "little", signed=True))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(status, code.to_bytes(_NUMBER, "little", signed=True))
        os._exit(0)
    os.close(status)
    for fd, stream in zip(streams, _STREAMS, strict=True):
        os.dup2(fd, stream)
        os.close(fd)
    folder, environment, module, sys.argv[1:] = json.loads(work)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    words = [sys.executable, "-m", module, *sys.argv[1:]]
    first, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    shown = b"\0".join(os.fsencode(word) for word in words)[: end - first - 1]
    ctypes.memmove(first, shown.ljust(end - first, b"\0"), end - first)  # what others read as its command line
    return str(module)


def main() -> None:
    """Import, wait, and be what is asked for."""
    asked = socket.socket(fileno=int(sys.argv[1]))
    for name in _IMPORTED:
        import_module(name)
    gc.freeze()  # what collects the objects of all would copy their pages
    module = _become(asked)
    code: object = 1
    try:
        run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        print_exc()
    finally:
        # As an interpreter ends, but for taking apart what was imported: that would copy the memory of all of it.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    main()
