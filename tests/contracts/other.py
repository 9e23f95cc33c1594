"""Another process that works on a store until it is told to go on."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HEADER = """
    import sys
    from contextlib import closing
    from pathlib import Path
    from cyberkv.cybergraph import chain
    from cyberkv.cybergraph.errors import CyberKVError
    from cyberkv.cybergraph.index import Index
    from cyberkv.cybergraph.store import DiskStore
    from cyberkv.cybergraph.keeping.room import Room, write_cap
    from tests.contracts.synthetic import *
    home = Path(sys.argv[1])

    def wait(word):
        print(word, flush=True)
        sys.stdin.readline()
"""


class Other:
    """A running process whose code says `wait("word")` where the test takes over."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def says(self, word: str) -> None:
        """Wait for a line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line != f"{word}\n":
            self.process.kill()
            raise AssertionError((line, self.process.communicate()[1]))

    def goes_on(self) -> None:
        """Let it run from where it waits."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ends(self) -> None:
        """Let it run to its end, which has to be a good one."""
        _, errors = self.process.communicate("\n", timeout=60)
        assert self.process.returncode == 0, errors


@contextmanager
def other(code: str, home: Path) -> Iterator[Other]:
    """Run code in another process; `home` is a folder it knows by that name."""
    line = [sys.executable, "-c", textwrap.dedent(_HEADER) + textwrap.dedent(code), str(home)]
    with subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Other(process)
        finally:
            process.kill()
