"""GPU tests and benchmarks on a machine whose python3 has torch and triton and nothing of ours: nothing is installed
there, and no network is needed.

    python3 tests/gpu/run.py carry [--python 3.12] [REQUIREMENT ...]    here: make ready what travels, in .gpu
    python3 tests/gpu/run.py test [ARGUMENT OF PYTEST ...]              there: tests/gpu on the device
    python3 tests/gpu/run.py bench [ARGUMENT OF gpu_run ...]            there: the GPU benchmarks

`test` and `bench` end with 3 where there is no GPU, so that nobody takes that for a pass.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

TOP = Path(__file__).resolve().parents[2]
ROOMS = ("cybergraph", "runtime", "cli", "benchmarks")
REQUIREMENTS = "tests/gpu/carry.txt"
CARRIED = Path(".gpu")
MOST_BYTES = 64 << 20
"""What travels to a borrowed machine."""
MANYLINUX = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1")
MOST_WORKERS = 8
NO_GPU = 3
UNKNOWN = "unknown"
"""The commit of a tree that git does not know."""

PYTEST = (
    "-m", "pytest", "-p", "no:cacheprovider", "-p", "xdist.plugin", "-p", "pytest_timeout", "-W", "default",
    "-n", str(min(MOST_WORKERS, os.cpu_count() or 1)), "--slow", "--ignore", "tests/gpu/test_compiled.py", "tests/gpu",
)  # fmt: skip
"""A warning of another version of torch is no failure of a kernel. What compiles for devices that are absent is for
machines that have none."""
BENCH = ("-m", "cyberkv.benchmarks.gpu_run")


def main(argv: Sequence[str]) -> int:
    if not argv or argv[0] not in ("carry", "test", "bench"):
        print(__doc__, file=sys.stderr)
        return 2
    if argv[0] == "carry":
        return carry(argv[1:])
    command = [*(PYTEST if argv[0] == "test" else BENCH), *argv[1:]]
    if argv[0] == "bench" and "--dry-run" in argv:
        return run(command)
    if lack := lacking():
        print(f"{lack}: nothing was run. With a GPU, this is: python3 {' '.join(command)}")
        return NO_GPU
    return run(command)


def lacking() -> str | None:
    """Say what keeps a GPU from being used here, or None."""
    if find_spec("torch") is None or find_spec("triton") is None:
        return "no GPU to be used, this python has no torch with triton"
    import torch

    return None if torch.cuda.is_available() else f"no GPU here, says torch {torch.__version__}"


def run(command: Sequence[str]) -> int:
    """Run a module of ours with what was carried, compiled and not interpreted, and give its exit code."""
    site = prepare(TOP / CARRIED)
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    path = os.pathsep.join([str(site), *filter(None, [kept.get("PYTHONPATH")])])
    # The plugins of whatever else is installed there are not ours to load.
    environment = {**kept, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run([sys.executable, *command], cwd=TOP, env=environment, check=False).returncode


def prepare(carried: Path) -> Path:
    """Make a folder for PYTHONPATH: our packages by their installed names, and of the wheels those that are lacking."""
    site = carried / "site"
    if find_spec("cyberkv") is None:
        (site / "cyberkv").mkdir(parents=True, exist_ok=True)
        for room in ROOMS:
            link = site / "cyberkv" / room
            if not link.exists():
                link.unlink(missing_ok=True)  # of a tree that has moved since
                link.symlink_to(TOP / room)
    for wheel in sorted((carried / "wheels").glob("*.whl")):
        if not installed(wheel.name.split("-")[0]):
            with ZipFile(wheel) as parts:
                parts.extractall(site)
    return site


def installed(package: str) -> bool:
    """Say whether this python has a package, of any version."""
    try:
        version(package.replace("_", "-"))
    except PackageNotFoundError:
        return False
    return True


def carry(argv: Sequence[str]) -> int:
    """Download wheels for the other machine's python, note the commit, and say how much all is."""
    parser = argparse.ArgumentParser(prog="run.py carry")
    parser.add_argument("more", metavar="REQUIREMENT", nargs="*", help="also this, where it fits (FlashInfer, say)")
    parser.add_argument("--python", default="3.12", help="version of the other machine's python3 (default 3.12)")
    args = parser.parse_args(argv)
    if not re.fullmatch(r"3\.\d+", args.python):
        parser.error(f"--python is a version such as 3.12, not {args.python}")
    wheels = TOP / CARRIED / "wheels"
    for old in (wheels, TOP / CARRIED / "site"):
        shutil.rmtree(old, ignore_errors=True)
    wheels.mkdir(parents=True)
    platforms = [part for name in MANYLINUX for part in ("--platform", f"{name}_x86_64")]
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--only-binary=:all:", "--implementation", "cp", "--python-version", args.python, *platforms,
        "--dest", str(wheels), "--requirement", str(TOP / REQUIREMENTS), *args.more,
    ]  # fmt: skip
    if code := subprocess.run(command, cwd=TOP, check=False).returncode:
        return code
    (TOP / CARRIED / "commit").write_text(commit(TOP) + "\n")
    return weigh(travelling_bytes(TOP), len(list(wheels.glob("*.whl"))))


def weigh(size_bytes: int, wheels: int) -> int:
    """Say how much travels, and give 1 where that is too much."""
    fits = size_bytes <= MOST_BYTES
    print(f"{size_bytes / (1 << 20):.1f} MiB travel: the working tree, {wheels} wheels in {CARRIED}/wheels; "
          f"at most {MOST_BYTES >> 20} MiB{'' if fits else ', TOO MUCH'}")  # fmt: skip
    return 0 if fits else 1


def travelling_bytes(top: Path) -> int:
    """Count what is in a working tree, tracked or not ignored, and what is carried beside it.

    Without git, everything counts that is not in a hidden folder: nothing says what is ignored.
    """
    listed = _git(top, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is None:
        files = {path for each in top.iterdir() if not each.name.startswith(".") for path in (each, *each.rglob("*"))}
    else:
        files = {top / name for name in listed.split("\0") if name}
    files |= set((top / CARRIED).rglob("*"))
    return sum(path.stat().st_size for path in files if path.is_file() and not path.is_symlink())


def commit(top: Path) -> str:
    """Name the commit, with a plus where the working tree differs from it; `unknown` without git."""
    head = _git(top, "rev-parse", "HEAD")
    return UNKNOWN if head is None else head.strip() + ("+" if _git(top, "status", "--porcelain") else "")


def _git(top: Path, *arguments: str) -> str | None:
    """Give what git says of a folder; None where there is no git, or where it keeps nothing of this one."""
    try:
        done = subprocess.run(["git", *arguments], cwd=top, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return None if done.returncode else done.stdout


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
