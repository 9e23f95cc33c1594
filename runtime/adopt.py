"""Adoption: using blocks that somebody computed before, after checking that they are what they claim.

Every failure on the way is a miss with a reason, never an error and never wrong rows: the caller computes what is not
adopted.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass

from ..cybergraph.cid import Cid
from ..cybergraph.verdict import Tier
from .engine import Engine
from .sequence import Sequence
from .tiers import Miss


@dataclass(frozen=True, slots=True)
class Adopted:
    """Blocks that a sequence has from now on."""

    cids: list[Cid]
    tiers: list[Tier]
    """Where each was before."""
    miss: Miss | None
    """Why not all were adopted."""


def adopt_blocks(
    engine: Engine, sequence: Sequence, blocks: Items[Cid], tokens: Items[int], prev: Cid | None, *,
    later: bool = False,
) -> Adopted:  # fmt: skip
    """Take as many leading `blocks` as verify and bind to `tokens`, after the blocks the sequence already has.

    Effects: pool rows are taken, filled where they are not yet, and made hot for the adopted blocks only; those that no
    layer reads are checked and get no row. With `later`, the last of them may be left on their way where all are read
    (`Sequence.coming`); what was before is waited for. Raises `TierFull`, and as `Coming.take`.
    """
    if blocks:
        sequence.settle()  # who waits for blocks that others bring must not have others wait for it
    size, first, count = engine.geometry.block_size, len(sequence.table), len(blocks)
    miss: Miss | None = None
    while count:
        unread = max(0, sequence.unread_blocks(first + count) - first)
        wanted, position = blocks[:count], first * size
        with engine.residency.ensure(
            wanted, tokens, prev=prev, position_start=position, unread=unread, later=later and not unread
        ) as lease:
            miss = lease.miss or miss
            found = len(lease.rows)
            if found < count and unread:
                count = found  # of a shorter run, other blocks are read
                continue
            if found:
                engine.residency.secure(
                    [cid for cid, tier in zip(lease.cids, lease.tiers, strict=True) if tier <= Tier.L1]
                )
                sequence.reserve((first + found) * size)
                sequence.table += lease.keep()
                if lease.coming is None:
                    sequence.heat_blocks(first, first + found)
                    sequence.archive(first + found)
                else:  # where it has to go back, what is read then must still be there: nothing is archived
                    sequence.heat_blocks(first, lease.coming.first_block)
                    sequence.coming, lease.coming = lease.coming, None
            return Adopted(lease.cids, lease.tiers, miss)
    return Adopted([], [], miss)
