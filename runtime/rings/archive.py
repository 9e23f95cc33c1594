"""Archived blocks: in the store and in no pool row, until something reads them again."""

from collections.abc import Sequence

from ...cybergraph.cid import Cid
from ...cybergraph.errors import Corrupt
from ..rows import ARCHIVED
from ..tiers import Residency


def bring_back(residency: Residency, table: list[int], blocks: Sequence[Cid], first: int, last: int) -> None:
    """Have the archived ones of blocks `first` to `last` (excluded) in pool rows again, checked, from where they are.

    Effects: all of them get rows in `table`, or none. Raises `NotFound`, `Corrupt`, `TierFull`.
    """
    archived = [block for block in range(first, last) if table[block] == ARCHIVED]
    rows: list[int] = []
    try:
        while len(rows) < len(archived):
            start = end = archived[len(rows)]
            while end < last and table[end] == ARCHIVED:
                end += 1
            prev = blocks[start - 1] if start else None
            with residency.ensure(blocks[start:end], prev=prev) as lease:
                if lease.miss is not None:
                    raise lease.miss.error or Corrupt(lease.miss.reason, cid=lease.miss.cid)
                rows += lease.keep()
    except BaseException:
        for row in rows:
            residency.pool.release(row)
        raise
    for block, row in zip(archived, rows, strict=True):
        table[block] = row
