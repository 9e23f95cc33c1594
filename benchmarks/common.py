"""Timing and reporting shared by the benchmarks."""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

CACHE = Path(os.environ.get("CYBERKV_BENCH_CACHE", "build/bench-models"))
"""Where the real model is kept, on a real disk. What a benchmark writes goes beside it."""


@dataclass(frozen=True)
class Claim:
    """One measured figure with its bar."""

    name: str
    value: float
    bar: float
    unit: str = "x"
    at_most: bool = False
    """The bar is an upper bound."""

    @property
    def holds(self) -> bool:
        return self.value <= self.bar if self.at_most else self.value >= self.bar


def options(argv: Sequence[str] | None, description: str) -> argparse.Namespace:
    """Parse the options every benchmark has."""
    return options_of(description).parse_args(argv)


def options_of(description: str) -> argparse.ArgumentParser:
    """Give the options every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="small sizes; bars are not enforced")
    sizes.add_argument("--full", action="store_true", help="the largest sizes, where it has them: many GiB and minutes")
    parser.add_argument("--folder", type=Path, default=CACHE.parent, help="where to write, on a real disk")
    return parser


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A new folder in `--folder`, removed afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="bench-", dir=folder) as name:
        yield Path(name)


def best_s(work: Callable[[], object], repeats: int) -> float:
    """Shortest of `repeats` runs, in seconds: the least disturbed by other load."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def best_in_turns_s(*works: Callable[[], object], repeats: int) -> list[float]:
    """Shortest of `repeats` runs of each, taken in turns so that all meet the same disturbances."""
    rounds = [[best_s(work, 1) for work in works] for _ in range(repeats)]
    return [min(times) for times in zip(*rounds, strict=True)]


def report(args: argparse.Namespace, title: str, claims: Sequence[Claim], figures: dict[str, float]) -> int:
    """Print the claims and raw figures; return 1 if a bar is missed (never with `--quick`)."""
    missed = [claim.name for claim in claims if not claim.holds]
    if args.json:
        rows = [{"name": c.name, "value": c.value, "unit": c.unit, "bar": c.bar, "holds": c.holds} for c in claims]
        print(json.dumps({"title": title, "machine": platform.processor() or platform.machine(), "quick": args.quick,
                          "claims": rows, "figures": figures}))  # fmt: skip
    else:
        print(title)
        for claim in claims:
            sign, mark = ("<=" if claim.at_most else ">="), ("holds" if claim.holds else "MISSED")
            print(f"  {claim.name:<58} {claim.value:10.2f} {claim.unit}   bar {sign} {claim.bar:g}: {mark}")
        for name, value in figures.items():
            print(f"    {name:<56} {value:12.4f}")
    return 1 if missed and not args.quick else 0
