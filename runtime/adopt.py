"""Adoption: using blocks that somebody computed before, after checking that they are what they claim.

Every failure on the way is a miss with a reason, never an error and never wrong rows: the caller computes what is not
adopted.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass

from ..cybergraph.chain import misfit
from ..cybergraph.cid import Cid
from ..cybergraph.errors import Corrupt, CyberKVError, DigestMismatch, NotFound
from ..cybergraph.nodes import Block
from .engine import Engine
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Miss:
    """Why reuse ended where it did."""

    position_start: int
    """First position that has to be computed."""
    reason: str
    cid: str | None = None


def adopt_blocks(
    engine: Engine, sequence: Sequence, blocks: Items[Cid], tokens: Items[int], prev: Cid | None
) -> tuple[list[Cid], Miss | None]:
    """Load as many leading `blocks` as verify and bind to `tokens`, after the blocks the sequence already has.

    Effects: pool rows are allocated, read into and made hot for the adopted blocks only. Returns the adopted CIDs and,
    if not all were adopted, why.
    """
    size = engine.geometry.block_size
    first = len(sequence.table)
    bound, miss = _bind(engine, blocks, tokens, prev, first * size)
    while bound:
        sequence.reserve((first + len(bound)) * size)
        sequence.extend_table((first + len(bound)) * size)
        leaves = [cid for node in bound for cid in node.kv]
        views = [view for row in sequence.table[first:] for view in engine.pool.leaves(row)]
        try:
            engine.store.get_into(leaves, views)
        except (NotFound, Corrupt) as error:
            sequence.truncate_table(first)
            failed = str(error.data.get("cid"))
            good = next((i for i, node in enumerate(bound) if failed in map(str, node.kv)), 0)
            miss = drop_failed(engine, (first + good) * size, error)
            bound = bound[:good]
            continue
        sequence.heat_blocks(first, first + len(bound))
        break
    return list(blocks[: len(bound)]), miss


def _bind(
    engine: Engine, blocks: Items[Cid], tokens: Items[int], prev: Cid | None, start: int
) -> tuple[list[Block], Miss | None]:
    """Read block nodes for as long as each names this model, the block before it and these tokens."""
    size = engine.geometry.block_size
    bound: list[Block] = []
    for i, cid in enumerate(blocks):
        position = start + i * size
        try:
            node = Block.decode(engine.store.get(cid), verify=cid)
        except (NotFound, Corrupt) as error:
            return bound, drop_failed(engine, position, error)
        window, leaves = tokens[i * size : (i + 1) * size], engine.geometry.leaves_per_block
        if field := misfit(node, model=engine.model_cid, prev=prev, tokens=window, leaves=leaves):
            return bound, Miss(position, f"the index names a block whose field {field!r} does not fit", str(cid))
        bound.append(node)
        prev = cid
    return bound, None


def drop_failed(engine: Engine, position_start: int, error: CyberKVError) -> Miss:
    """Turn a failed load into a miss. Effects: a damaged block leaves the store, and a good one can take its place.

    One that cannot be read, or whose bytes are what their hash says and still do not fit here, stays.
    """
    cid = error.data.get("cid")
    if isinstance(error, DigestMismatch) and cid:
        engine.store.drop_damaged([Cid.parse(str(cid))])
    way_back = "; if it was fetched, `cyberkv fetch` brings it back" if isinstance(error, NotFound) else ""
    return Miss(position_start, error.message + way_back, str(cid) if cid else None)
