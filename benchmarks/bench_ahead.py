"""A request that waits while another runs: how soon it has its first token with `--host-memory`, and without.

Its prompt is known, and its blocks are in the store alone, with the page cache cold: the files are dropped from it
before each run. One conversation runs at a time, so the request waits for the one before. Its first token is timed from
the last one of that. The peer is the same engine without host memory, in turns with it; every block has to have taken
its own way. How long a step of the running conversation takes meanwhile is the price.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store.disk import DiskStore
from cyberkv.cybergraph.verdict import Tier
from cyberkv.runtime.batching.admission import Limits
from cyberkv.runtime.batching.request import Outcome, Request
from cyberkv.runtime.batching.scheduler import Scheduler
from cyberkv.runtime.engine import Engine, build_engine
from cyberkv.runtime.live import Live

from .common import Claim, options, report, scratch
from .real_model import load_smollm2, prompt

ANSWER_TOKENS = 24
"""Of the conversation that runs: time enough for everything to come."""


def cool(folder: Path) -> None:
    """Drop files from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def serve(engine: Engine, first: Sequence[int], known: Sequence[int]) -> tuple[float, float, int]:
    """Give the wait for the first token of the second request, a step of the first one, and the token."""
    scheduler = Scheduler(engine, Limits(running=1))
    heard: tuple[list[tuple[float, int]], ...] = ([], [])

    def note(times: list[tuple[float, int]], event: int | Outcome) -> None:
        if isinstance(event, int):
            times.append((time.perf_counter(), event))

    scheduler.submit(Request(tuple(first), max_tokens=ANSWER_TOKENS), lambda event: note(heard[0], event))
    scheduler.submit(Request(tuple(known), max_tokens=1), lambda event: note(heard[1], event))
    while scheduler.busy:
        scheduler.step()
    if scheduler.ahead:
        scheduler.ahead.close()
    running = [at_s for at_s, _ in heard[0]]
    [(first_s, token)] = heard[1]
    return first_s - running[-1], (running[-1] - running[0]) / (len(running) - 1), token


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    length, rounds = (256, 1) if args.quick else (2016, 5)
    loaded = load_smollm2()
    first, known = prompt(64, loaded.config.vocab_size, 1), prompt(length, loaded.config.vocab_size)
    best: dict[str, float] = {}
    with (
        scratch(args.folder) as folder, DiskStore(folder / "store") as store, Index(folder / "index") as index,
    ):  # fmt: skip
        recording = build_engine(loaded, store, index)
        live = Live(recording)
        live.append(known)
        blocks, expected = len(live.blocks), int(live.next_logits().argmax())
        live.close()
        for _ in range(rounds):
            for way, host_blocks in (("without", 0), ("with", 2 * blocks)):
                engine = build_engine(loaded, store, index, domain=recording.domain)
                engine.host_bytes = host_blocks * engine.geometry.block_bytes
                cool(folder)
                wait_s, step_s, token = serve(engine, first, known)
                moved = engine.residency.log.blocks
                hops = (moved[Tier.L2, Tier.L1], moved[Tier.L1, Tier.L0])
                if token != expected or hops != ((blocks, blocks) if host_blocks else (0, 0)):
                    raise SystemExit(f"{way}: token {token} for {expected}, {hops} blocks by way of L1")
                for name, taken_s in ((f"wait {way}, s", wait_s), (f"step {way}, s", step_s)):
                    best[name] = min(best.get(name, taken_s), taken_s)
    gain = best["wait without, s"] / best["wait with, s"]
    price = best["step with, s"] / best["step without, s"]
    claims = [
        Claim(f"first token after {length} known tokens, brought ahead or not", gain, 0.8),
        Claim("a step of who runs meanwhile, brought ahead or not", price, 1.25, at_most=True),
    ]
    return report(args, "Ahead of requests that wait", claims, best)


if __name__ == "__main__":
    raise SystemExit(main())
