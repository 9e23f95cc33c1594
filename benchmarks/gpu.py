"""What the GPU benchmarks share: where they run, how they time, and how they say what was not measured.

Work is timed in turns with its peer, so that both meet the same clocks and the same neighbours, and nothing is set on
the device. A figure is the median over the rounds of the peer's time divided by ours in the same round; its spread is
the quartiles of that. A peer that is absent is said, never guessed, and so is a device that is.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from cyberkv.runtime.quant import DTYPES

from .common import options_of

FLUSHED_BYTES, FLUSHES = 1 << 30, 4
"""Written before each turn: more than any cache holds, and it takes longer than the host needs to launch the next."""
WARM_UP = 3
NO_DEVICE = "no CUDA device here"
DRY_RUN = "a dry run, which times nothing"


@dataclass(frozen=True)
class GpuClaim:
    """One figure with its bar and peer, or why there is none."""

    name: str
    bar: float
    peer: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    """Quartiles over the rounds."""
    why: str | None = None
    """Of a claim that was not measured."""

    @property
    def holds(self) -> bool | None:
        return None if self.value is None else self.value >= self.bar

    def row(self) -> dict[str, object]:
        return {"name": self.name, "value": self.value, "low": self.low, "high": self.high, "unit": "x",
                "bar": self.bar, "holds": self.holds, "peer": self.peer, "not_measured": self.why}  # fmt: skip


@dataclass(frozen=True)
class Peer:
    """A peer that works, and what it computed."""

    run: Callable[[], Tensor]
    result: Tensor


def line(row: dict[str, object]) -> str:
    """Say one claim."""
    if row["value"] is None:
        return f"  {row['name']:<58} not measured: {row['not_measured']}"
    mark = "holds" if row["holds"] else "MISSED"
    spread = f"({row['low']:.2f} to {row['high']:.2f})"
    return f"  {row['name']:<58} {row['value']:8.2f} x {spread:<16} bar >= {row['bar']:g}: {mark}"


def options(argv: Sequence[str] | None, description: str) -> argparse.Namespace:
    """Parse the options every GPU benchmark has: those of the others, and a dry run."""
    parser = options_of(description)
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU; nothing is timed")
    return parser.parse_args(argv)


class Bench:
    """One benchmark: where it runs, and what it found."""

    def __init__(self, title: str, args: argparse.Namespace) -> None:
        self.title, self.args, self.dry = title, args, bool(args.dry_run)
        self.present = torch.cuda.is_available() and not self.dry
        self.runs = self.present or self.dry
        """Whether there is anything to run at all."""
        self.device = torch.device("cuda" if self.present else "cpu")
        self.dtype_name = "f32" if self.dry else "bf16"
        self.dtype = DTYPES[self.dtype_name]
        self.claims: list[GpuClaim] = []
        self.figures: dict[str, float] = {}
        self._flushed: Tensor | None = None
        self._late = 0

    def size(self, full: int, quick: int, dry: int) -> int:
        """Choose a size by the options."""
        return dry if self.dry else quick if self.args.quick else full

    @property
    def kernels(self) -> ModuleType:
        """The kernels; in a dry run what they compute in plain tensors, unless Triton interprets them."""
        from cyberkv.runtime.cuda import reference

        if self.dry and os.environ.get("TRITON_INTERPRET") != "1":
            return reference
        from cyberkv.runtime.cuda.kernels import launch

        return launch

    def random(self, *shape: int, seed: int) -> Tensor:
        """Give normal numbers in the type of the run."""
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(shape, generator=generator, device=self.device, dtype=torch.float32).to(self.dtype)

    def on_device_s(self, *works: Callable[[], object], rounds: int = 25) -> list[list[float]]:
        """Time work by events on the device, in turns, with nothing of it in cache before. Empty in a dry run.

        All rounds are queued at once: the host is ahead, and what it takes to launch is in no figure.
        """
        if not self._warm(works):
            return [[] for _ in works]
        if self._flushed is None:
            self._flushed = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device=self.device)
        marks: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = []
        for _ in range(rounds):
            marks.append([])
            for work in works:
                for _ in range(FLUSHES):
                    self._flushed.zero_()
                start, end = _event(), _event()
                start.record()
                work()
                end.record()
                marks[-1].append((start, end))
        # The last turn has begun by now: the device waited for the host, whose launching is in the figures.
        if marks[-1][-1][0].query():  # type: ignore[no-untyped-call]
            self._late += 1
            self.figures["timings in which the host was not ahead"] = float(self._late)
        torch.cuda.synchronize()
        turns = [[start.elapsed_time(end) / 1e3 for start, end in turn] for turn in marks]
        return [list(times) for times in zip(*turns, strict=True)]

    def on_host_s(self, *works: Callable[[], object], rounds: int = 5, warm_up: int = 1) -> list[list[float]]:
        """Time work by the host's clock, in turns, from an idle device to an idle device. Empty in a dry run."""
        if not self._warm(works, warm_up):
            return [[] for _ in works]
        turns: list[list[float]] = []
        for _ in range(rounds):
            turns.append([])
            for work in works:
                torch.cuda.synchronize()
                start = time.perf_counter()
                work()
                torch.cuda.synchronize()
                turns[-1].append(time.perf_counter() - start)
        return [list(times) for times in zip(*turns, strict=True)]

    def _warm(self, works: Sequence[Callable[[], object]], times: int = WARM_UP) -> bool:
        for work in works:
            for _ in range(1 if self.dry else times):
                work()
        if not self.dry:
            torch.cuda.synchronize()
        return not self.dry

    def claim(self, name: str, bar: float, peer: str, ours: Sequence[float], peers: Sequence[float]) -> None:
        """Say how many times as fast as a peer we are, round by round."""
        if not ours:
            self.unmeasured(name, bar, peer, DRY_RUN)
            return
        ratios = [theirs / own for own, theirs in zip(ours, peers, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        self.claims.append(GpuClaim(name, bar, peer, middle, low, high))

    def unmeasured(self, name: str, bar: float, peer: str, why: str) -> None:
        """Say why there is no figure."""
        self.claims.append(GpuClaim(name, bar, peer, why=why))

    def answer(self, claim: tuple[str, float, str], make: Callable[[], Callable[[], Tensor]]) -> Peer | None:
        """Make a peer and have it compute once; where it is absent or does not work here, say so."""
        try:
            peer = make()
            return Peer(peer, peer())
        except Exception as error:
            first = str(error).strip().splitlines()[:1]
            self.unmeasured(*claim, f"the peer does not run here, {type(error).__name__}: {''.join(first)}")
            return None

    def figure(self, name: str, times: Sequence[float], per: Callable[[float], float] = lambda s: 1e6 * s) -> None:
        """Keep a raw figure: the median time, in microseconds unless `per` says otherwise."""
        if times:
            self.figures[name] = per(statistics.median(times))

    def report(self) -> int:
        """Print everything; return 1 where a bar is missed (never with `--quick`)."""
        rows = [claim.row() for claim in self.claims]
        if self.args.json:
            print(json.dumps({"title": self.title, "machine": device_name(), "quick": self.args.quick, "claims": rows,
                              "figures": self.figures}))  # fmt: skip
        else:
            print(self.title)
            for row in rows:
                print(line(row))
            for name, value in self.figures.items():
                print(f"    {name:<56} {value:12.4f}")
        missed = any(claim.holds is False for claim in self.claims)
        return 1 if missed and not self.args.quick else 0

    def absent(self, *claims: tuple[str, float, str]) -> int:
        """Report every claim as not measured, for want of a device."""
        print(f"{self.title}: not measured, {NO_DEVICE}", file=sys.stderr)
        for name, bar, peer in claims:
            self.unmeasured(name, bar, peer, NO_DEVICE)
        return self.report()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def device_name() -> str:
    """Name the device, or the lack of one."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else NO_DEVICE


def require_close(ours: Tensor, peers: Tensor, bound: float = 2e-2) -> None:
    """Fail where we and a peer did not compute the same. Units: of the largest number of the peer's."""
    gap = float((ours.float() - peers.float()).abs().amax() / peers.float().abs().amax())
    if not gap <= bound:
        raise AssertionError(f"differs from its peer by {gap:g} of the largest number, at most {bound:g} is right")
