"""Other implementations as fixtures."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, sync_playwright

from fixtures.make import FOLDER
from tests.compat.daemon import Daemon
from tests.compat.places import KUBO, NODE, TOP, chromium, need, node

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def javascript() -> Callable[..., Any]:
    """Run one of the `.mjs` files here, `javascript("check.mjs", argument, ...)`: what it printed, from JSON."""
    program = node()

    def run(script: str, *arguments: object) -> Any:
        # A module from standard input looks for packages from the working folder, so nothing is copied there.
        done = subprocess.run(
            [program, "--input-type=module", "-", *map(str, arguments)],
            input=(HERE / script).read_bytes(), cwd=NODE, capture_output=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory, javascript: Callable[..., Any]) -> dict[str, Any]:
    """What `check.mjs` found in the golden files; `written` is the path of the CAR it wrote."""
    written = tmp_path_factory.mktemp("compat") / "written.car"
    found: dict[str, Any] = javascript("check.mjs", FOLDER, TOP / "cybergraph" / "cyberkv.ipldsch", written)
    return {**found, "written": written}


@pytest.fixture
def kubo(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Start a node, `kubo("a", Provide__Strategy="roots")`; stopped at the end."""
    need(f"Kubo at {KUBO}", KUBO.exists())
    with ExitStack() as stack:

        def start(name: str, *, online: bool = True, **settings: Any) -> Daemon:
            daemon = Daemon(tmp_path / name, online=online, **settings)
            stack.callback(daemon.stop)
            return daemon

        yield start


@pytest.fixture
def browser_page() -> Iterator[Page]:
    """A page in Debian's Chromium, 1100 by 800, that loads from this machine alone."""
    program = chromium()
    with sync_playwright() as playwright:
        # As root Chromium has no sandbox; what it opens here is ours.
        browser = playwright.chromium.launch(executable_path=program, chromium_sandbox=False)
        yield browser.new_page(viewport={"width": 1100, "height": 800})
        browser.close()
