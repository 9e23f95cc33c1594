"""`bench`: the benchmarks, each in a process of its own."""

import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from .context import Session, default_cache, pass_session
from .output import answer, remark, say

PACKAGE = "cyberkv.benchmarks"
PREFIX = "bench_"
MISSED = 1


def _names() -> list[str]:
    spec = find_spec(PACKAGE)
    places = spec.submodule_search_locations if spec else None
    modules = (module.name for module in pkgutil.iter_modules(places or ()))
    return sorted(name.removeprefix(PREFIX) for name in modules if name.startswith(PREFIX))


NAMES = _names()


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice(NAMES))
@click.option("--quick", is_flag=True, help="Small sizes, bars not enforced: only see that it runs.")
@click.option("--full", is_flag=True, help="The largest sizes, where a benchmark has them: many GiB and minutes.")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), help="Where to write, on a real disk.")
@click.option("--list", "only_list", is_flag=True, help="List the names, measure nothing.")
@click.pass_context
@pass_session
def bench(
    session: Session,
    ctx: click.Context,
    names: tuple[str, ...],
    *,
    quick: bool,
    full: bool,
    folder: Path | None,
    only_list: bool,
) -> None:
    """Measure this machine against the project's claims.

    Runs the named benchmarks, or all, one after the other, each in a process of its own. Each prints its figures
    beside a peer measured in the same run. Exits with 1 if a bar is missed or a benchmark fails. The peers come with
    `pip install 'cyberkv[test]'`.
    """
    if only_list:
        answer(session, {"names": NAMES}, lambda: say("\n".join(NAMES)))
        return
    if quick and full:
        raise click.UsageError("--quick and --full exclude each other")
    flags = [
        *(["--quick"] if quick else []),
        *(["--full"] if full else []),
        *(["--folder", str(folder)] if folder else []),
    ]
    results = [_run(session, name, flags) for name in names or NAMES]
    missed = [each["name"] for each in results if not each["holds"]]
    data = {"quick": quick, "missed": missed, "benchmarks": results}
    passed = "all ran; bars are not enforced with --quick" if quick else "all hold"
    answer(session, data, lambda: say(f"missed: {', '.join(missed)}" if missed else passed, bold=True))
    if missed:
        ctx.exit(MISSED)


def _run(session: Session, name: str, flags: Sequence[str]) -> dict[str, Any]:
    """Run one benchmark; its figures are kept for JSON, or go straight to the terminal."""
    remark(session, f"bench {name}")
    done = subprocess.run(
        [sys.executable, "-m", f"{PACKAGE}.{PREFIX}{name}", *flags, *(["--json"] if session.as_json else [])],
        env={"CYBERKV_BENCH_CACHE": str(default_cache() / "models"), **os.environ},
        stdout=subprocess.PIPE if session.as_json else None, check=False,
    )  # fmt: skip
    result: dict[str, Any] = {"name": name, "holds": done.returncode == 0}
    if session.as_json and done.stdout:
        result |= json.loads(done.stdout)
    return result
