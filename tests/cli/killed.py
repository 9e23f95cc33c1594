"""The command, killed where a step of `grant` would be: `python -m tests.cli.killed WHERE LINE`."""

import os
import signal
import sys

from cyberkv.cli.main import cli
from cyberkv.cybergraph.access import sealing
from cyberkv.cybergraph.index import Index


def killed(*_: object, **__: object) -> None:
    """End this process as the system does."""
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    owner, step = {
        "while it is sealed": (sealing.Sealing, "_finish"),
        "before it is served": (Index, "publish"),
        "before the old is withdrawn": (Index, "withdraw"),
    }[sys.argv.pop(1)]
    setattr(owner, step, killed)
    cli(sys.argv[1:])
