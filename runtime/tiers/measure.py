"""What each tier takes to give a block, measured here and now."""

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from ...cybergraph.cid import Cid
from ...cybergraph.errors import CyberKVError, TierFull
from ...cybergraph.nodes import Block
from ...cybergraph.verdict import Tier
from ..pool import HostBlock
from .residency import Residency


@dataclass(frozen=True, slots=True)
class TierSpeed:
    """One tier as it answered."""

    tier: Tier
    size_bytes: int
    latency_s: float
    """Of one block, verified where the tier is outside this process."""

    @property
    def bytes_s(self) -> float | None:
        """Rate over that one block; None where the clock did not move."""
        return self.size_bytes / self.latency_s if self.latency_s > 0 else None


def measure(residency: Residency, blocks: Sequence[Cid], clock_s: Callable[[], float]) -> list[TierSpeed]:
    """Time one of `blocks` from each tier that has it; what has none of them, or fails, is left out.

    Copied are L0 to host memory and L1 back to a row; read are L2 and L3, each from the first block that it gives. The
    first peer is asked, and only for what it may be told. Effects: takes a pool row for the time. Raises `TierFull`.
    """
    pool, lower = residency.pool, residency.lower
    found: list[TierSpeed] = []

    def timed(tier: Tier, work: Callable[[], int]) -> bool:
        started_s = clock_s()
        try:
            size_bytes = work()
        except CyberKVError:
            return False
        found.append(TierSpeed(tier, size_bytes, clock_s() - started_s))
        return True

    if not blocks:
        return found
    size_bytes, row = pool.geometry.block_bytes, pool.allocate()
    try:
        with suppress(TierFull), closing(pool.copy_out(row)):
            pass  # the next one does not touch the row for the first time

        def to_host() -> int:
            with closing(pool.copy_out(row)) as data:
                data.leaves()
            return size_bytes

        def from_host(data: HostBlock) -> int:
            pool.copy_in(row, data)
            pool.drain()
            return size_bytes

        timed(Tier.L0, to_host)
        with suppress(TierFull), closing(pool.copy_out(row)) as data:
            data.leaves()
            timed(Tier.L1, lambda: from_host(data))

        def from_store(cid: Cid) -> int:
            pool.fill(residency.store, [Block.decode(residency.store.get(cid)).kv], [row])
            pool.drain()
            return size_bytes

        def from_peer(cid: Cid) -> int:
            kv = Block.decode(residency.store.get(cid)).kv
            return sum(memoryview(each).nbytes for source in lower.sources[:1] for _, each in source.get_many(kv))

        any(timed(Tier.L2, lambda cid=cid: from_store(cid)) for cid in blocks)  # type: ignore[misc]
        public = [cid for cid in blocks if lower.sources and lower.may_ask(cid)]
        any(timed(Tier.L3, lambda cid=cid: from_peer(cid)) for cid in public)  # type: ignore[misc]
    finally:
        pool.release(row)
    return found
