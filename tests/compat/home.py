"""A home with made-up conversations, and `cyberkv` as processes on it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import DiskStore
from tests.wire.synthetic import contents, record

PROGRAM = [sys.executable, "-m", "cyberkv.cli", "--json"]
CREATED = "2025-01-01T00:00:00Z"


def make_home(home: Path, **conversations: int) -> dict[str, Cid]:
    """Record conversations by name, each of so many blocks, and give their roots. They share no block but the model."""
    home.mkdir(mode=0o700)
    return {name: grow(home, name, blocks) for name, blocks in conversations.items()}


def grow(home: Path, name: str, blocks: int) -> Cid:
    """Record the conversation `name` again, longer, and give its new root."""
    with DiskStore(home / "store") as store, Index(home / "index") as index:
        root = record(store, blocks=blocks, seed=name)
        index.set_head(name, root, CREATED)
    return root


def held(home: Path, root: Cid) -> dict[Cid, bytes]:
    """Everything below a root, from the store itself."""
    with DiskStore(home / "store", read_only=True) as store:
        return contents(store, root)


def cyberkv(home: Path, *words: object, code: int = 0, **environment: str) -> dict[str, Any]:
    """Run one command, which has to end with this code, and give its one JSON object."""
    done = subprocess.run(
        [*PROGRAM, "--home", str(home), *map(str, words)],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def publish(home: Path, name: str, *words: object, **environment: str) -> dict[str, Any]:
    """Make a conversation public."""
    return cyberkv(home, "publish", name, "--public", "--yes", *words, **environment)


def start_serving(home: Path, *words: object, listen: str = "127.0.0.1:0") -> "tuple[subprocess.Popen[str], str]":
    """Start `cyberkv serve` and wait for its URL."""
    process = subprocess.Popen(
        [*PROGRAM, "--home", str(home), "serve", "--listen", listen, *map(str, words)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    said = json.loads(process.stdout.readline() or "{}")
    assert "url" in said, said
    return process, said["url"]


@contextmanager
def serving(home: Path, *words: object, listen: str = "127.0.0.1:0") -> Iterator[str]:
    """The URL of `cyberkv serve`, until the block ends."""
    process, url = start_serving(home, *words, listen=listen)
    try:
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (130, ""), stderr
