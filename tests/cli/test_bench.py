"""`bench`: names, processes, exit codes. What is measured belongs to the benchmarks."""

import json
import os
from pathlib import Path

import pytest

from cyberkv.cli import bench
from cyberkv.cli.context import Session, default_cache
from tests.cli.conftest import Command
from tests.forked import Forked


def test_the_names_are_those_of_the_modules(cyberkv: Command) -> None:
    names = cyberkv.json("bench", "--list")["names"]
    assert names == sorted(names)
    assert set(names) >= {"decode", "index", "nodes", "prefill", "resume", "start"}
    assert cyberkv("bench", "--list").stdout.split() == names
    assert "'nosuch'" in cyberkv.error(2, "bench", "nosuch")["message"]


def test_a_benchmark_runs_in_its_own_process_and_gives_its_figures(cyberkv: Command) -> None:
    answer = cyberkv.json("bench", "nodes", "--quick")
    assert (answer["quick"], answer["missed"]) == (True, [])
    [result] = answer["benchmarks"]
    assert (result["name"], result["holds"], result["quick"]) == ("nodes", True, True)
    assert {"name", "value", "bar", "holds", "unit"} == set(result["claims"][0])
    assert result["figures"]


def test_a_missed_bar_is_named_and_the_others_still_run(cyberkv: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def run(_session: Session, name: str, flags: list[str]) -> dict[str, object]:
        ran.append((name, flags))
        return {"name": name, "holds": name != "index"}

    monkeypatch.setattr(bench, "_run", run)
    result = cyberkv("--json", "bench", ok=False)
    assert (result.exit_code, result.json["missed"]) == (1, ["index"])
    assert ran == [(name, []) for name in bench.NAMES]
    assert "missed: index" in cyberkv("bench", "index", ok=False).stdout
    assert cyberkv("bench", "nodes").exit_code == 0
    cyberkv("bench", "scale", "--full", "--folder", "there")
    assert ran[-1] == ("scale", ["--full", "--folder", "there"])
    assert "exclude each other" in cyberkv.error(2, "bench", "scale", "--full", "--quick")["message"]


def test_a_benchmark_writes_only_where_it_is_told(cyberkv: Command, tmp_path: Path) -> None:
    folder = tmp_path / "made" / "on demand"
    assert cyberkv.json("bench", "room", "--quick", "--folder", folder)["missed"] == []
    assert list(folder.iterdir()) == []


def test_a_benchmark_that_cannot_run_is_missed(cyberkv: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "PREFIX", "no_bench_")
    result = cyberkv("--json", "bench", "nodes", ok=False)
    assert (result.exit_code, result.json["benchmarks"]) == (1, [{"name": "nodes", "holds": False}])


@pytest.mark.slow
@pytest.mark.parametrize("name", bench.NAMES)
def test_every_benchmark_still_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `bench` starts them, but for the seconds that each takes to import torch."""
    if "CYBERKV_BENCH_CACHE" not in os.environ:
        monkeypatch.setenv("CYBERKV_BENCH_CACHE", str(default_cache() / "models"))
    running = Forked(["--quick", "--json"], module=f"{bench.PACKAGE}.{bench.PREFIX}{name}")
    said, complaints = running.communicate()
    assert running.returncode == 0, complaints
    # A real node may be absent here; `make compat` brings it, and its own tests.
    assert name == "kubo" or json.loads(said)["claims"]
