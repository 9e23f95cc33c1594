"""Parking: a conversation outside the pool, and back. Its blocks are in the store; its tail's rows are kept."""

from dataclasses import dataclass

from ...cybergraph.cid import Cid
from ..engine import Engine
from ..live import Live
from ..reuse import Counts


@dataclass(frozen=True, slots=True)
class Parked:
    """What brings a conversation back, bit for bit."""

    tokens: tuple[int, ...]
    blocks: tuple[Cid, ...]
    prefilled: int
    tail_rows: tuple[bytes, ...]
    """One for each layer group, as in `BlockPool.tail_leaves`; none without a tail."""
    approx: str | None
    counts: Counts


def park(live: Live) -> Parked:
    """Copy what only the pool has. Nothing is given back yet."""
    tail = live.tail
    rows = live.engine.pool.tail_leaves(live.sequence.table[len(live.blocks)], len(tail)) if tail else []
    return Parked(tuple(live.tokens), tuple(live.blocks), live.prefilled, tuple(rows), live.approx, live.counts)


def unpark(engine: Engine, parked: Parked) -> Live:
    """Bring a conversation back: its blocks from where they are, its tail from its bytes.

    Where blocks are gone, it ends there, and the rest has to be computed again. Raises `TierFull`, and then holds no
    row.
    """
    live, tokens = Live(engine, approx=parked.approx), list(parked.tokens)
    live.counts, full = parked.counts, len(parked.blocks)
    sealed, tail = tokens[: full * engine.geometry.block_size], tokens[full * engine.geometry.block_size :]
    try:
        live.adopt(parked.blocks, sealed)
        if tail and len(live.blocks) == full:
            live.sequence.extend_table(len(tokens))
            engine.pool.fill_tail(live.sequence.table[-1], len(tail), parked.tail_rows)
            live.restore_tail(tail, parked.prefilled, loaded=True)
    except BaseException:
        live.close()
        raise
    return live
