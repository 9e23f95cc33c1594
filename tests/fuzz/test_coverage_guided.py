"""The same readers under a fuzzer that sees which code an input reaches, for a bounded number of runs."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("atheris") is None, reason="no atheris here: pip install atheris"),
]
ROOT = Path(__file__).parents[2]
RUNS = {"signed grant": 300, "challenge": 300, "proof": 300, "public key to wrap for": 500}
MOST_RUNS = 5000


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_typed_refusals(name: str, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    options = [f"-runs={RUNS.get(name, MOST_RUNS)}", "-max_len=8192", "-seed=1", f"-artifact_prefix={tmp_path}/"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.coverage_guided", name, *options, str(corpus)],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    found = [path.read_bytes().hex() for path in tmp_path.glob("crash-*")]
    assert done.returncode == 0, (found, done.stderr[-3000:])
    assert "DONE" in done.stderr
