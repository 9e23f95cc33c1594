"""Independent processes with the same model and text arrive at the same names."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cyberkv.runtime.models.registry import Registry, smollm2_source
from tests.forked import Forked

Run = Callable[..., Any]
WORKER = "tests.numerics.worker"


def run_forked(*line: object) -> Any:
    return json.loads(Forked(line, module=WORKER).communicate()[0])


def run_anew(*line: object) -> Any:
    command = [sys.executable, "-m", WORKER, *map(str, line)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    return json.loads(done.stdout)


def check_convergence(run: Run, registry: Path, folder: Path, count: int) -> None:
    """Three processes, of which the second has a home for each schedule."""
    [one] = run(registry, folder, 1, count, "a", "chunks")
    two, decoded, naive = run(registry, folder, 2, count, "b", "chunks", "c", "decode", "d", "naive")
    [again] = run(registry, folder, 2, count, "a", "chunks")
    full = count // 16
    assert len(one["blocks"]) == full
    assert one["blocks"] == two["blocks"] == decoded["blocks"]
    assert one["domain"] == two["domain"]
    assert one["reused"] == two["reused"] == decoded["reused"] == 0
    assert again["reused"] == full * 16
    differing = sum(a != b for a, b in zip(one["leaves"], naive["leaves"], strict=True))
    assert differing > 0
    print(f"{len(one['leaves'])} leaves: equal in all canonical runs; the naive schedule differs in {differing}")


def test_two_processes_name_the_same_blocks(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    Registry(tmp_path / "models").add(tiny("llama"))
    check_convergence(run_forked, tmp_path / "models", tmp_path, 130)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_processes_name_the_same_blocks_of_the_real_model(tmp_path: Path) -> None:
    Registry(tmp_path / "models").add(smollm2_source())
    check_convergence(run_anew, tmp_path / "models", tmp_path, 560)
