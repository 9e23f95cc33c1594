"""Archived blocks: in the store and in no pool row, until something reads them again."""

from collections.abc import Sequence

from ...cybergraph.cid import Cid
from ...cybergraph.nodes import Block
from ...cybergraph.store.base import Store
from ..pool import ARCHIVED, Pool


def bring_back(store: Store, pool: Pool, table: list[int], blocks: Sequence[Cid], first: int, last: int) -> None:
    """Read the archived ones of blocks `first` to `last` (excluded) from the store into pool rows, checked.

    Effects: all of them get rows in `table`, or none. Raises `NotFound`, `Corrupt`, `TierFull`.
    """
    archived = [block for block in range(first, last) if table[block] == ARCHIVED]
    rows: list[int] = []
    try:
        leaves: list[Cid] = []
        for block in archived:
            leaves += Block.decode(store.get(blocks[block]), verify=blocks[block]).kv
            rows.append(pool.allocate())
        store.get_into(leaves, [view for row in rows for view in pool.leaves(row)])
    except BaseException:
        for row in rows:
            pool.release(row)
        raise
    for block, row in zip(archived, rows, strict=True):
        table[block] = row
