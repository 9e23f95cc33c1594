"""`make gpu-test`, `gpu-bench` and `gpu-carry`: where kernels run, what travels, and that no GPU is no pass."""

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from cyberkv.runtime.cuda.kernels import launch
from tests.gpu import run
from tests.gpu.cases import DEVICE

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")


def test_kernels_run_on_the_gpu_where_there_is_one_and_under_the_interpreter_elsewhere() -> None:
    assert (DEVICE.type == "cuda") == torch.cuda.is_available()
    assert isinstance(launch.decode_panels, InterpretedFunction) == (DEVICE.type == "cpu")


@no_gpu
@pytest.mark.parametrize(("what", "command"), [("test", "--slow"), ("bench", "cyberkv.benchmarks.gpu_run")])
def test_without_a_gpu_nothing_runs_and_that_is_no_pass(
    what: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main([what, "--of-no-use"]) == run.NO_GPU == 3
    said = capsys.readouterr().out
    assert "no GPU here" in said
    assert f"{command}" in said
    assert "--of-no-use" in said


def test_another_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main([]) == run.main(["tests"]) == 2
    assert "run.py carry" in capsys.readouterr().err


def wheel(folder: Path, name: str, package: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as parts:
        parts.writestr(f"{package}/__init__.py", "HERE = __file__\n")


def test_only_what_a_machine_lacks_is_unpacked(tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "carried_only_here", "carried_only_here")
    wheel(tmp_path / "wheels", "numpy", "numpy")
    site = run.prepare(tmp_path)
    assert [path.name for path in site.iterdir()] == ["carried_only_here"]
    command = "import carried_only_here, numpy; print(carried_only_here.HERE); print(numpy.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", command], env={"PYTHONPATH": str(site)}, capture_output=True, text=True
    )
    carried, own = done.stdout.split()
    assert carried.startswith(str(site))
    assert not own.startswith(str(tmp_path))


def test_where_our_packages_are_not_installed_they_are_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "find_spec", lambda _: None)
    (tmp_path / "site/cyberkv").mkdir(parents=True)
    (tmp_path / "site/cyberkv/cybergraph").symlink_to(tmp_path / "a tree that was moved")
    for _ in range(2):  # a second run finds the links there
        site = run.prepare(tmp_path)
    # -S: without the packages that are installed here, ours among them
    command = "from cyberkv.cybergraph import limits; print(limits.__file__)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", command], env={"PYTHONPATH": str(site)}, capture_output=True, text=True
    )
    assert done.stdout.strip() == str(site / "cyberkv/cybergraph/limits.py")
    assert Path(done.stdout.strip()).samefile(run.TOP / "cybergraph/limits.py")


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_what_travels_is_weighed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    (tmp_path / ".gitignore").write_text("ignored\n.gpu/\n")  # 14 bytes
    (tmp_path / "tracked").write_bytes(bytes(100))
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    assert run.travelling_bytes(tmp_path) == 114
    clean = run.commit(tmp_path)
    (tmp_path / "ignored").write_bytes(bytes(1 << 20))
    assert (run.travelling_bytes(tmp_path), run.commit(tmp_path)) == (114, clean)
    (tmp_path / "untracked").write_bytes(bytes(1000))
    (tmp_path / ".gpu/wheels").mkdir(parents=True)
    (tmp_path / ".gpu/wheels/a.whl").write_bytes(bytes(10_000))
    assert (run.travelling_bytes(tmp_path), run.commit(tmp_path)) == (11_114, clean + "+")
    shutil.rmtree(tmp_path / ".git")
    assert (run.travelling_bytes(tmp_path), run.commit(tmp_path)) == (100 + (1 << 20) + 1000 + 10_000, run.UNKNOWN)
    monkeypatch.setenv("PATH", "")  # nor is git there
    assert run.commit(tmp_path) == run.UNKNOWN
    assert run.weigh(run.MOST_BYTES, 1) == 0
    assert "TOO MUCH" not in capsys.readouterr().out
    assert run.weigh(run.MOST_BYTES + 1, 1) == 1
    assert "TOO MUCH" in capsys.readouterr().out
