"""All GPU benchmarks on one machine, one after the other, each in a process of its own: `make gpu-bench`.

    python -m cyberkv.benchmarks.gpu_run [--quick] [--json PATH] [--table PATH] [NAME ...]

The JSON file and the Markdown table are written anew after each benchmark, so a run that is cut short leaves what it
measured. Exits with 0 where all ran, 1 where a bar is missed or a benchmark failed, 3 where there is no GPU.
"""

import argparse
import json
import pkgutil
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from . import __path__ as here
from .common import CACHE
from .gpu import DRY_RUN, NO_DEVICE, device_name, line

TOP = Path(__file__).resolve().parents[1]
CARRIED_COMMIT = TOP / ".gpu/commit"
"""What `make gpu-carry` says of a working tree that travels without its history."""
PREFIX = "bench_gpu_"
NAMES = sorted(
    module.name.removeprefix(PREFIX) for module in pkgutil.iter_modules(here) if module.name.startswith(PREFIX)
)
MOST_S = 450
"""For all together: a borrowed machine ends a command after ten minutes, whatever it has said by then."""
MISSED, NO_GPU = 1, 3


def main(argv: Sequence[str] | None = None) -> int:
    args = _options(argv)
    if not args.dry_run and not torch.cuda.is_available():
        print(f"{NO_DEVICE}: nothing was measured. With one, this runs: {', '.join(args.names)}")
        return NO_GPU
    started_s = time.monotonic()
    results = []
    for name in args.names:
        flags = [*(["--quick"] if args.quick else []), *(["--dry-run"] if args.dry_run else [])]
        results.append(_run(name, [*flags, "--folder", str(args.folder)], MOST_S - (time.monotonic() - started_s)))
        _say(results[-1])
        summary = {**_machine(), "quick": args.quick, "dry_run": args.dry_run,
                   "took_s": round(time.monotonic() - started_s, 1), "benchmarks": results}  # fmt: skip
        if args.json:
            args.json.write_text(json.dumps(summary, indent=1) + "\n")
        if args.table:
            args.table.write_text(table(summary))
    return MISSED if any(result["failed"] or result["missed"] for result in results) else 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"of {', '.join(NAMES)}; by default all")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="small sizes; bars are not enforced")
    sizes.add_argument("--dry-run", action="store_true", help=DRY_RUN)
    parser.add_argument("--json", type=Path, help="where to write everything")
    parser.add_argument("--table", type=Path, help="where to write a Markdown table of the claims")
    parser.add_argument("--folder", type=Path, default=CACHE.parent, help="where to write, on a real disk")
    args = parser.parse_args(argv)
    if unknown := {*args.names} - {*NAMES}:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    args.names = args.names or NAMES
    return args


def _run(name: str, flags: list[str], left_s: float) -> dict[str, Any]:
    """Run one benchmark and keep what it says, or why it says nothing."""
    command = [sys.executable, "-m", f"{__package__}.{PREFIX}{name}", *flags, "--json"]
    result: dict[str, Any] = {"name": name, "command": " ".join(["python", *command[1:-1]]), "claims": [],
                              "figures": {}, "failed": None, "missed": False}  # fmt: skip
    if left_s <= 0:
        return result | {"failed": f"not begun: {MOST_S} s are over"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=left_s)
    except subprocess.TimeoutExpired:
        return result | {"failed": f"cut short: {MOST_S} s are over"}
    try:
        said = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        return result | {"failed": f"ended with {done.returncode}: {''.join(last)}", "stderr": done.stderr[-4000:]}
    return result | {"title": said["title"], "claims": said["claims"], "figures": said["figures"],
                     "missed": done.returncode != 0}  # fmt: skip


def _say(result: dict[str, Any]) -> None:
    print(result.get("title", result["name"]))
    if result["failed"]:
        print(f"  failed: {result['failed']}")
    for row in result["claims"]:
        print(line(row))
    for name, value in result["figures"].items():
        print(f"    {name:<56} {value:12.4f}", flush=True)


def _machine() -> dict[str, Any]:
    present = torch.cuda.is_available()
    return {
        "device": device_name(),
        "capability": ".".join(map(str, torch.cuda.get_device_capability())) if present else None,
        "driver": _asked("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") if present else None,
        "python": sys.version.split()[0], "torch": str(torch.__version__), "triton": _version("triton"),
        "flashinfer": _version("flashinfer-python"), "commit": commit(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _asked(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=TOP).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def commit() -> str | None:
    """Name the commit that is measured, with a plus where the working tree differs from it; None where nobody knows."""
    if head := _asked("git", "rev-parse", "HEAD"):
        return head + ("+" if _asked("git", "status", "--porcelain") else "")
    return CARRIED_COMMIT.read_text().strip() if CARRIED_COMMIT.exists() else None


def table(summary: dict[str, Any]) -> str:
    """Write the claims as a Markdown table, with what they were measured on above it."""
    on = {"driver": summary["driver"], "torch": summary["torch"], "triton": summary["triton"],
          "commit": summary["commit"]}  # fmt: skip
    kind = "A dry run on the CPU" if summary["dry_run"] else f"On {summary['device']}"
    said = ", ".join([kind, *(f"{name} {value}" for name, value in on.items() if value)])
    lines = [f"{said}{', small sizes' if summary['quick'] else ''}.", "",
             "| claim | measured | quartiles | bar | | peer |", "|---|---|---|---|---|---|"]  # fmt: skip
    for result in summary["benchmarks"]:
        lines += map(_table_row, result["claims"])
        if result["failed"]:
            lines.append(f"| `{result['name']}` | failed: {result['failed']} | | | | |")
    return "\n".join(lines) + "\n"


def _table_row(row: dict[str, Any]) -> str:
    if row["value"] is None:
        return f"| {row['name']} | not measured: {row['not_measured']} | | {row['bar']:g} | | {row['peer']} |"
    mark = "holds" if row["holds"] else "MISSED"
    spread = f"{row['low']:.2f} to {row['high']:.2f}"
    return f"| {row['name']} | {row['value']:.2f} | {spread} | {row['bar']:g} | {mark} | {row['peer']} |"


if __name__ == "__main__":
    raise SystemExit(main())
