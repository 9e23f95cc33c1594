"""What a piece of work takes in memory, measured in the process that does it."""

import gc
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_EVERY_S = 0.005
MIB = 1 << 20


class Measured:
    """Peaks of memory by name of the work, in bytes above what the process held before it.

    Memory that maps a file (the catalogue's pages) is not counted: the kernel takes it back when it likes.
    """

    def __init__(self) -> None:
        self.peak_bytes: dict[str, int] = {}

    def __call__(self, name: str, work: Callable[[], T]) -> T:
        gc.collect()
        before_bytes, peaks, done = _own_bytes(), [0], threading.Event()

        def watch() -> None:
            while not done.wait(_EVERY_S):
                peaks.append(_own_bytes())

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            return work()
        finally:
            done.set()
            watcher.join()
            self.peak_bytes[name] = max(*peaks, _own_bytes(), before_bytes) - before_bytes


def _own_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this kernel does not tell")


def in_child(module: str, *arguments: object) -> dict[str, Any]:
    """Run `tests.scale.<module>` in another process and give what it reports."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.scale.{module}", *map(str, arguments)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
