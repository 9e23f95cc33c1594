"""Where the Node.js packages are, and a loud skip where they are not."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fixtures.make import FOLDER

HERE = Path(__file__).parent
TOP = HERE.parents[1]
PACKAGES = Path(os.environ.get("CYBERKV_COMPAT_DIR", TOP / "build" / "compat"))


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `check.mjs` found in the golden files; `written` is the path of the CAR it wrote."""
    node = shutil.which("node")
    if node is None or not (PACKAGES / "installed").exists():
        pytest.skip(f"no Node.js packages in {PACKAGES}: run tests/compat/install.sh")
    written = tmp_path_factory.mktemp("compat") / "written.car"
    # A module from standard input looks for packages from the working folder, so nothing is copied there.
    done = subprocess.run(
        [node, "--input-type=module", "-", FOLDER, TOP / "cybergraph" / "cyberkv.ipldsch", written],
        input=(HERE / "check.mjs").read_bytes(), cwd=PACKAGES, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "written": written}
