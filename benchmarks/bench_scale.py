"""What a conversation costs against its size: recording, restoring, publishing and fetching, from one block (2 MiB) on.

Each size is recorded into a store, read back checked, written to a CAR file and fetched from that into a second store,
all durably, with leaves of 256 KiB. The cost of a size is a + b * size^e; below `FIT_FROM_BYTES` the fixed part
dominates, so the exponent e is fitted over the sizes from there on. The disk is written around the page cache, and what
is restored is read from the disk as far as the kernel does not hold it. Free memory is touched once before: on a
virtual machine the first use of a page costs six times a read. The plot goes to docs/img/scale.png when
matplotlib is here. `--full` goes on to 16 GiB and needs twice that on the disk.
"""

import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from itertools import islice
from mmap import PAGESIZE, mmap
from pathlib import Path
from typing import Final

from cyberkv.cybergraph import chain
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.peers import CarFilePeer
from cyberkv.cybergraph.store import DiskStore, Store
from cyberkv.cybergraph.transfer import fetch, plan_publish, publish_car

from . import made_up
from .common import Claim, options, report, scratch

LEAF_BYTES: Final = 256 << 10
LEAST_BYTES, FIT_FROM_BYTES = 2 << 20, 64 << 20
COPIES: Final = 2
"""The CAR file, and beside it the store, then a copy of the file, then the second store."""
RESTORE_BYTES: Final = 512 << 20
"""What stands for the pool: a conversation is restored into it in one call, or in several where it is larger."""
MADV_POPULATE_WRITE: Final = 23
REPEATS: Final = 2
"""The shorter of two runs counts: the other may have met other work on the disk."""
EXPONENT_BAR: Final = 1.15
RAW: Final = "a raw copy of the CAR"
"""Shows what the disk itself does; no claim."""
COPY_BYTES: Final = 4 << 20
PLOT: Final = Path("docs/img/scale.png")

Costs = dict[str, list[float]]
"""Seconds by kind of work, one for each size."""


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    most_bytes = (8 << 20) if args.quick else (16 << 30) if args.full else (4 << 30)
    sizes = [LEAST_BYTES << 2 * step for step in range(20) if LEAST_BYTES << 2 * step <= most_bytes]
    sizes += [most_bytes] * (sizes[-1] < most_bytes)
    costs: Costs = {}
    with scratch(args.folder) as folder:
        free_bytes = shutil.disk_usage(folder).free
        if free_bytes < (COPIES + 1) * most_bytes:
            sys.exit(f"{free_bytes >> 20} MiB are free, {(COPIES + 1) * most_bytes >> 20} are needed")
        _touch_memory(most_bytes)
        pool = memoryview(mmap(-1, min(RESTORE_BYTES, most_bytes)))
        pool[:] = bytes(len(pool))
        rows = [pool[at : at + LEAF_BYTES] for at in range(0, len(pool), LEAF_BYTES)]
        for size_bytes in sizes:
            rounds = [_measure(folder / "home", size_bytes, rows) for _ in range(REPEATS)]
            for work in rounds[0]:
                costs.setdefault(work, []).append(min(each[work] for each in rounds))
    fitted = {name: exponent(sizes, times) for name, times in costs.items()}
    claims = [
        Claim(f"exponent of {name}", value, EXPONENT_BAR, unit=" ", at_most=True)
        for name, value in fitted.items()
        if name != RAW
    ]
    figures = {f"exponent of {RAW}": fitted[RAW]} | {
        f"{name} of {size_bytes >> 20} MiB, ms": time_s * 1e3
        for name, times in costs.items()
        for size_bytes, time_s in zip(sizes, times, strict=True)
    }
    if not args.quick:
        _plot(sizes, costs, fitted)
    return report(args, "Cost against size", claims, figures)


def _touch_memory(most_bytes: int) -> None:
    """Have the machine's owner give what the page cache is about to use."""
    free_bytes = os.sysconf("SC_AVPHYS_PAGES") * PAGESIZE
    with mmap(-1, max(PAGESIZE, min(most_bytes, free_bytes * 9 // 10) // PAGESIZE * PAGESIZE)) as memory:
        memory.madvise(MADV_POPULATE_WRITE)


def _measure(home: Path, size_bytes: int, rows: Sequence[memoryview]) -> dict[str, float]:
    """Give the seconds that each kind of work takes for one size."""
    took: dict[str, float] = {}

    def timed(name: str, work: Callable[[], object]) -> None:
        start = time.perf_counter()
        work()
        took[name] = time.perf_counter() - start

    roots: list[Cid] = []
    with DiskStore(home / "store") as store, Index(home / "index") as index:
        timed(
            "recording",
            lambda: roots.append(made_up.record(store, size_bytes, leaf_bytes=LEAF_BYTES, leaf_hash="blake3")),
        )
        timed("restoring", lambda: _restore(store, roots[0], rows))
        timed(
            "publishing",
            lambda: publish_car(store, plan_publish(store, index, roots[0], "public"), home / "made.car"),
        )
    second, car = home / "second", home / "made.car"
    shutil.rmtree(home / "store")
    timed(RAW, lambda: _copy(car, home / "copy"))
    (home / "copy").unlink()
    with DiskStore(second / "store") as store, Index(second / "index") as index, CarFilePeer(car) as peer:
        timed("fetching", lambda: fetch(store, index, roots[0], [peer]))
    shutil.rmtree(home)
    return took


def _copy(source: Path, target: Path) -> None:
    """Read a file and write another around the page cache, durably: the least that fetching could do."""
    reading = os.open(source, os.O_RDONLY | os.O_DIRECT)
    writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    with mmap(-1, COPY_BYTES) as memory:
        while count := os.readv(reading, [memory]):
            os.write(writing, memoryview(memory)[: -(-count // PAGESIZE) * PAGESIZE])
    os.fsync(writing)
    os.close(reading)
    os.close(writing)


def _restore(store: Store, root: Cid, rows: Sequence[memoryview]) -> None:
    """Walk a conversation and read its leaves into the same memory, as many at once as it holds."""
    leaves = (leaf for step in chain.walk(store, chain.load_root(store, root)) for leaf in step.block.kv)
    while part := list(islice(leaves, len(rows))):
        store.get_into(part, rows[: len(part)])


def exponent(sizes: Sequence[int], times: Sequence[float]) -> float:
    """Fit time = constant * size^e by least squares over the logarithms, and give e."""
    fitted = [(size, time) for size, time in zip(sizes, times, strict=True) if size >= FIT_FROM_BYTES]
    points = fitted if len(fitted) > 1 else list(zip(sizes, times, strict=True))
    xs, ys = [math.log(size) for size, _ in points], [math.log(time) for _, time in points]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    above = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True))
    return above / sum((a - x) ** 2 for a in xs)


def _plot(sizes: Sequence[int], costs: Costs, fitted: dict[str, float]) -> None:
    try:
        from matplotlib import pyplot as plt
    except ImportError:
        print(f"no plot: matplotlib is not installed (pip install 'cyberkv[dev]'); {PLOT} stays", file=sys.stderr)
        return
    if not PLOT.parent.parent.is_dir():
        print("no plot: it is made where the program is run beside its docs folder", file=sys.stderr)
        return
    PLOT.parent.mkdir(exist_ok=True)
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    mebibytes = [size / (1 << 20) for size in sizes]
    for name, times in costs.items():
        axes.loglog(mebibytes, times, "k--" if name == RAW else "o-", label=f"{name}: size^{fitted[name]:.2f}")
    last = max(times[-1] for times in costs.values())
    axes.loglog(mebibytes, [last * each / mebibytes[-1] for each in mebibytes], "k:", label="linear")
    axes.set_xlabel("size of the conversation, MiB")
    axes.set_ylabel("time, seconds")
    axes.set_title("Cost of a conversation against its size")
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.legend()
    figure.savefig(PLOT, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    raise SystemExit(main())
