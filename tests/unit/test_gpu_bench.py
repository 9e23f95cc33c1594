"""The GPU benchmarks where there is no GPU: what they say of it, how ratios are made, and that their code runs."""

import argparse
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from cyberkv.benchmarks import gpu_run
from cyberkv.benchmarks.gpu import DRY_RUN, NO_DEVICE, Bench, line, require_close

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
BARS = {
    "canonical": [0.9], "decode": [0.85, 0.9, 0.9, 1.0], "first_token": [3.0], "graph": [1.0, 1.0], "prefill": [0.7],
    "restore": [0.8, 1.0, 1.0], "rows": [0.9],
}  # fmt: skip


def bench(**options: bool) -> Bench:
    return Bench("A title", argparse.Namespace(**{"json": True, "quick": False, "dry_run": False} | options))


def said(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_a_claim_is_the_median_of_the_rounds_with_its_quartiles(capsys: pytest.CaptureFixture[str]) -> None:
    one = bench()
    one.claim("fast", 1.5, "peer", ours=[1.0, 2.0, 1.0, 1.0, 4.0], peers=[2.0, 2.0, 3.0, 4.0, 4.0])
    one.claim("slow", 1.5, "peer", ours=[1.0], peers=[1.0])
    assert one.report() == 1
    fast, slow = said(capsys)["claims"]
    assert (fast["low"], fast["value"], fast["high"], fast["holds"]) == (1.0, 2.0, 3.5, True)
    assert (slow["value"], slow["holds"]) == (1.0, False)
    assert line(fast).endswith("bar >= 1.5: holds")
    assert line(slow).endswith("bar >= 1.5: MISSED")


def test_a_missed_bar_counts_but_for_small_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    for quick, code in ((True, 0), (False, 1)):
        one = bench(quick=quick)
        one.claim("slow", 2.0, "peer", ours=[1.0, 1.0], peers=[1.0, 1.0])
        assert one.report() == code
        assert said(capsys)["quick"] is quick


def test_what_was_not_measured_has_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    one = bench(dry_run=True)
    ran: list[int] = []
    ours, peers = one.on_device_s(lambda: ran.append(1), lambda: ran.append(2))
    hosts = one.on_host_s(lambda: ran.append(3))
    assert (ran, ours, peers, hosts) == ([1, 2, 3], [], [], [[]])
    one.claim("timed", 1.0, "peer", ours, peers)
    one.figure("time, us", ours)
    one.unmeasured("absent", 1.0, "peer", "it is not installed")
    assert one.report() == 0
    told = said(capsys)
    assert [(row["value"], row["holds"], row["not_measured"]) for row in told["claims"]] == [
        (None, None, DRY_RUN), (None, None, "it is not installed"),
    ]  # fmt: skip
    assert told["figures"] == {}
    assert "not measured: it is not installed" in line(told["claims"][1])


def test_a_peer_that_does_not_work_here_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    one, claim = bench(), ("against it", 1.0, "peer")

    def absent() -> Any:
        return import_module("no_such_peer")

    assert one.answer(claim, absent) is None
    assert one.answer(claim, lambda: lambda: torch.ones(2) @ torch.ones(3)) is None
    works = one.answer(claim, lambda: lambda: torch.ones(2))
    assert works is not None
    assert torch.equal(works.result, works.run())
    assert one.report() == 0
    first, second = said(capsys)["claims"]
    assert (first["value"], second["value"]) == (None, None)
    assert "ModuleNotFoundError: No module named 'no_such_peer'" in first["not_measured"]
    assert "RuntimeError" in second["not_measured"]


def test_peers_that_compute_something_else_are_found() -> None:
    numbers = torch.arange(1.0, 101.0)
    require_close(numbers, numbers + 1)
    for other in (numbers + 10, numbers * float("nan")):
        with pytest.raises(AssertionError, match="differs from its peer"):
            require_close(numbers, other)


@no_gpu
@pytest.mark.parametrize("name", gpu_run.NAMES)
def test_without_a_gpu_each_claim_is_named_and_not_measured(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert import_module(f"cyberkv.benchmarks.bench_gpu_{name}").main(["--json", "--quick"]) == 0
    rows = said(capsys)["claims"]
    assert sorted(row["bar"] for row in rows) == BARS[name]
    assert {(row["value"], row["not_measured"]) for row in rows} == {(None, NO_DEVICE)}


@no_gpu
def test_without_a_gpu_the_run_of_all_is_no_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_run.main(["--json", str(tmp_path / "all.json")]) == gpu_run.NO_GPU == 3
    told = capsys.readouterr().out
    assert NO_DEVICE in told
    assert all(name in told for name in BARS)
    assert list(tmp_path.iterdir()) == []


def test_the_documents_list_every_claim_with_its_bar(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs/benchmarks.md").read_text()
    for name in gpu_run.NAMES:
        module = import_module(f"cyberkv.benchmarks.bench_gpu_{name}")
        bench_of = Bench("", argparse.Namespace(json=True, quick=True, dry_run=False))
        claims = [module.CLAIM] if hasattr(module, "CLAIM") else module.CLAIMS
        bench_of.absent(*(claims.values() if isinstance(claims, dict) else claims))
        for row in said(capsys)["claims"]:
            assert f"| {row['name']} | " in text
            assert f"| {row['bar']:g} | {row['peer']} |" in text


def summary(*results: dict[str, Any]) -> dict[str, Any]:
    return {"device": "A GPU", "driver": "1.2", "torch": "2.0", "triton": "3.0", "commit": "abc+", "dry_run": False,
            "quick": True, "benchmarks": results}  # fmt: skip


def test_the_table_says_what_was_measured_and_what_was_not() -> None:
    one = bench()
    one.claim("fast", 1.5, "peer", ours=[1.0, 1.0], peers=[2.0, 2.0])
    one.unmeasured("absent", 1.0, "nobody", "it is not installed")
    rows = [claim.row() for claim in one.claims]
    text = gpu_run.table(summary(
        {"name": "one", "claims": rows, "failed": None}, {"name": "two", "claims": [], "failed": "ended with -9: "}
    ))  # fmt: skip
    assert text.startswith("On A GPU, driver 1.2, torch 2.0, triton 3.0, commit abc+, small sizes.\n\n| claim |")
    assert "| fast | 2.00 | 2.00 to 2.00 | 1.5 | holds | peer |\n" in text
    assert "| absent | not measured: it is not installed | | 1 | | nobody |\n" in text
    assert "| `two` | failed: ended with -9: " in text


@pytest.mark.slow
@pytest.mark.parametrize("name", gpu_run.NAMES)
def test_the_code_of_each_benchmark_runs_without_a_gpu(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = import_module(f"cyberkv.benchmarks.bench_gpu_{name}")
    assert module.main(["--json", "--dry-run", "--folder", str(tmp_path)]) == 0
    rows = said(capsys)["claims"]
    assert sorted(row["bar"] for row in rows) == BARS[name]
    assert {row["value"] for row in rows} == {None}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_run_of_all_writes_what_it_found_after_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = [tmp_path / "all.json", tmp_path / "all.md"]
    command = ["--dry-run", "--json", str(places[0]), "--table", str(places[1]), "--folder", str(tmp_path), "prefill"]
    assert gpu_run.main(command) == 0
    told = json.loads(places[0].read_text())
    assert (told["dry_run"], told["torch"], told["device"]) == (True, torch.__version__, gpu_run.device_name())
    [result] = told["benchmarks"]
    assert (result["name"], result["failed"], len(result["claims"])) == ("prefill", None, 1)
    assert "bench_gpu_prefill --dry-run" in result["command"]
    assert places[1].read_text().startswith("A dry run on the CPU, torch ")
    assert "not measured" in capsys.readouterr().out


@pytest.mark.slow
def test_a_benchmark_that_fails_is_told_and_is_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_run, "PREFIX", "no_bench_")
    places = [tmp_path / "all.json", tmp_path / "all.md"]
    assert gpu_run.main(["--dry-run", "--json", str(places[0]), "--table", str(places[1]), "rows"]) == 1
    [result] = json.loads(places[0].read_text())["benchmarks"]
    assert "No module named" in result["failed"]
    assert "failed: ended with 1" in capsys.readouterr().out
    assert "failed: ended with 1" in places[1].read_text()
    monkeypatch.setattr(gpu_run, "MOST_S", 0)
    assert gpu_run.main(["--dry-run", "rows"]) == 1
    assert "not begun" in capsys.readouterr().out
