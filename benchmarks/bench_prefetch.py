"""Going on from a conversation that is elsewhere, layer by layer against prefix first; and reading blocks ahead.

The link is simulated: a peer in this process gives the blocks of another store at 200 Mbit/s after 20 ms for each
request, and takes no processor time for it, as a network card would. Everything else is real: hashing, storing
durably, computing. Prefix first is the same code, which waits for the last leaf before the first layer attends.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event

import torch

from cyberkv.cybergraph.cid import Buffer, Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.peers.local import StorePeer
from cyberkv.cybergraph.staging import Room
from cyberkv.cybergraph.store import Store
from cyberkv.cybergraph.store.disk import DiskStore
from cyberkv.runtime.canonical import Domain
from cyberkv.runtime.checkpoint import checkpoint
from cyberkv.runtime.engine import build_engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.models.registry import LoadedModel
from cyberkv.runtime.pool import Pool
from cyberkv.runtime.prefetch import Arrival, Prefetcher, append_arriving
from cyberkv.runtime.prefetch.link import Link, simulate
from cyberkv.runtime.tiers import Residency

from .common import Claim, options, report, scratch
from .real_model import load_smollm2, prompt

BYTES_S = 200e6 / 8
LATENCY_S = 0.02
BAR = 1.3
BURST = 8
"""A reader takes so many blocks at once, and computes on them."""
AHEAD = (0, 2, 8)


class SlowPeer(StorePeer):
    """The blocks of a store, over a link with a rate and a latency."""

    name = "a link of 200 Mbit/s"

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._closed = Event()

    def read_many(self, cids: Sequence[Cid], room: Room) -> Iterator[tuple[Cid, Buffer]]:
        here_s = time.perf_counter() + LATENCY_S
        for cid, data in super().read_many(cids, room):
            here_s += memoryview(data).nbytes / BYTES_S
            self._closed.wait(max(0.0, here_s - time.perf_counter()))
            yield cid, data


class PrefixFirst(Arrival):
    """Lets no layer attend before the last leaf is here."""

    def take(self, layer: int) -> tuple[int, int] | None:
        self._wait(lambda: self._leaves.done)
        return super().take(layer)


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    tokens, repeats = (256, 1) if args.quick else (1008, 5)
    loaded = load_smollm2()
    text = prompt(2 * tokens, loaded.config.vocab_size)
    with (
        scratch(args.folder) as folder, torch.no_grad(),
        DiskStore(folder / "origin/store") as origin, Index(folder / "origin/index") as index,
    ):  # fmt: skip
        engine = build_engine(loaded, origin, index)
        live = Live(engine)
        live.append(text[:tokens])
        root, blocks = checkpoint(live, title="bench", created=""), list(live.blocks)
        live.append(text[tokens:])
        expected = live.next_logits()
        live.close()
        times: dict[type[Arrival], list[float]] = {Arrival: [], PrefixFirst: []}
        homes = iter(range(2 * repeats))
        for _ in range(repeats):
            for kind, taken in times.items():
                home = folder / str(next(homes))
                taken.append(_first_token_s(kind, loaded, engine.domain, origin, root, text[tokens:], home, expected))
        best = {kind: min(taken) for kind, taken in times.items()}
        figures = {
            "the link alone, s": tokens * engine.geometry.bytes_per_token / BYTES_S,
            "layer by layer, s to the first new token": best[Arrival],
            "prefix first, s to the first new token": best[PrefixFirst],
        }
        figures |= _reading(loaded, origin, blocks, folder)
    name = f"first token, {tokens} elsewhere and {tokens} new: layer by layer"
    return report(args, "Prefetch", [Claim(name, best[PrefixFirst] / best[Arrival], BAR)], figures)


def _first_token_s(
    kind: type[Arrival], loaded: LoadedModel, domain: Domain, origin: Store, root: Cid, text: list[int], home: Path,
    expected: torch.Tensor,
) -> float:  # fmt: skip
    with DiskStore(home / "store") as store, Index(home / "index") as index:
        engine = build_engine(loaded, store, index, domain=domain)
        engine.pool.rows[:160].zero_()  # memory that is touched for the first time is slow, for both
        live = Live(engine)
        start_s = time.perf_counter()
        arrival = kind(store, index, root, [SlowPeer(origin)])
        arrival.open()
        append_arriving(live, arrival, text)
        logits = live.next_logits()
        taken_s = time.perf_counter() - start_s
        assert torch.equal(logits, expected)
        assert live.counts.misses == []
        live.close()
    return taken_s


def _reading(loaded: LoadedModel, origin: Store, blocks: list[Cid], folder: Path) -> dict[str, float]:
    """Read a conversation from a peer in bursts, with some blocks ahead; then leave one of two heads half-way."""
    geometry, figures = loaded.geometry, dict[str, float]()
    link = Link(2 * LATENCY_S, BYTES_S, geometry.block_bytes)  # one request for the node, one for its leaves
    burst_s = BURST * link.block_s * 1.5
    blocks = blocks[: len(blocks) // BURST * BURST]

    def over(work: Callable[[Residency], float], name: str) -> float:
        with DiskStore(folder / name) as store:
            pool = Pool(geometry, len(blocks) + 2)
            residency = Residency(
                pool, store, loaded.cid, host_bytes=16 * geometry.block_bytes, sources=[SlowPeer(origin)],
                may_ask=lambda _: True,
            )  # fmt: skip
            return work(residency)

    for ahead in AHEAD:

        def read(residency: Residency, ahead: int = ahead) -> float:
            stall_s = 0.0
            with Prefetcher(residency, ahead_blocks=ahead) as prefetcher, prefetcher.walk(blocks) as walk:
                for at, cid in enumerate(blocks):
                    start_s = time.perf_counter()
                    residency.ensure([cid], prev=blocks[at - 1] if at else None).close()
                    stall_s += time.perf_counter() - start_s
                    walk.advance(at + 1)
                    if at % BURST == BURST - 1:
                        time.sleep(burst_s)
                assert prefetcher.tally.wasted == 0
            return stall_s

        figures[f"{ahead} blocks ahead: stalled, s"] = over(read, f"ahead-{ahead}")
        expected = simulate(
            [blocks], link, ahead_blocks=ahead, most_blocks=8,
            compute_s=lambda at: burst_s if at % BURST == BURST - 1 else 0.0,
        )  # fmt: skip
        figures[f"{ahead} blocks ahead: stalled in the simulator, s"] = expected.stall_s

    def leave(residency: Residency) -> float:
        half = len(blocks) // 2
        with Prefetcher(residency, ahead_blocks=4) as prefetcher:
            with prefetcher.walk(blocks) as walk:
                for at in range(half):
                    residency.ensure([blocks[at]], prev=blocks[at - 1] if at else None).close()
                    walk.advance(at + 1)
                prefetcher.idle(10)
            figures["a head that stops half-way: read, MB"] = half * geometry.block_bytes / 1e6
            return prefetcher.tally.wasted_bytes

    figures["a head that stops half-way: brought in vain, MB"] = over(leave, "left") / 1e6
    return figures


if __name__ == "__main__":
    raise SystemExit(main())
