"""Timing and reporting shared by the benchmarks."""

import argparse
import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


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
    return parser(description).parse_args(argv)


def parser(description: str) -> argparse.ArgumentParser:
    """The options every benchmark has, for one that has more."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", action="store_true", help="print one JSON object")
    made.add_argument("--quick", action="store_true", help="small sizes; bars are not enforced")
    return made


def best_s(work: Callable[[], object], repeats: int) -> float:
    """Shortest of `repeats` runs, in seconds: the least disturbed by other load."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def paired_best_s(ours: Callable[[], object], peer: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Shortest of `repeats` runs of each, taken in turns so that both meet the same disturbances."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        times[0].append(best_s(ours, 1))
        times[1].append(best_s(peer, 1))
    return min(times[0]), min(times[1])


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
