"""A live conversation: tokens, their K and V, and the operations on them.

Its rows are in one of three states. Full blocks are canonical and sealed. The tail's first `prefilled` rows are
canonical, too. Where a row alone does not have the canonical bytes, the rest of the tail was decoded one row at a time
and is provisional (`decoding`).
"""

import sys
from collections.abc import Sequence as Tokens
from typing import Any

from torch import Tensor

from ..cybergraph.cid import Cid
from ..cybergraph.errors import OutOfRange
from ..cybergraph.index import Index
from ..cybergraph.prefix import PrefixKey
from .announce import announce
from .appending import Appending, Progress
from .engine import Engine
from .reuse import Counts
from .rings.archive import bring_back
from .sealing import store_blocks

__all__ = ["Counts", "Live", "Progress"]


class Live(Appending):
    """One conversation in memory. Not safe for use by several threads."""

    def __init__(self, engine: Engine, *, approx: str | None = None) -> None:
        self.engine = engine
        self.approx = approx
        """Why the bytes are not exact, or None. What follows from them is not exact either: it is stored and never
        indexed."""
        self.tokens: list[int] = []
        self.blocks: list[Cid] = []
        """Sealed blocks, in order."""
        self.tail_loaded = False
        """Whether rows of the tail came from a root, not from here: the block that they fill is computed."""
        self.counts = Counts()
        self.sequence = engine.new_sequence()
        self._keys: list[PrefixKey] = []
        self._hidden: Tensor | None = None
        self._provisional = sys.maxsize
        """Position of the first provisional row, if it is one of the tail."""

    @property
    def _index(self) -> Index | None:
        return None if self.approx else self.engine.index

    @property
    def tail(self) -> list[int]:
        """The tokens after the last full block."""
        return self.tokens[self.boundary :]

    def fork(self, at: int) -> "Live":
        """Start another conversation from the first `at` tokens; full blocks are shared, the rows of a cut one copied.

        Nothing is computed. Raises `OutOfRange` outside 0 to the length, `TierFull`.
        """
        fields, (full, rest) = self._beginning(at), divmod(at, self.engine.geometry.block_size)
        child = Live(self.engine, approx=self.approx)
        try:
            child.sequence.reserve(at)
            for row in self.sequence.table[:full]:
                child.sequence.table.append(self.engine.pool.retain(row))
            child.sequence.heat_blocks(0, full)
            if rest:
                child.sequence.table.append(self._copy_cut(full, rest))
                child.sequence.heat_rows(at - rest, rest)
        except BaseException:
            child.close()
            raise
        vars(child).update(fields)
        return child

    def rollback(self, at: int) -> None:
        """Go back to the first `at` tokens, as if the others had never come; the rest of a cut block is the tail again.

        Nothing is computed, and what is stored stays. Failed or stopped, the conversation is as before or as after.
        Raises `OutOfRange` outside 0 to the length, `TierFull` where the rest of a cut block finds no row of its own.
        """
        fields, (full, rest) = self._beginning(at), divmod(at, self.engine.geometry.block_size)
        keeps = full + (1 if rest and full == len(self.blocks) else 0)  # the row of a tail is nobody else's
        sequence, copied = self.sequence.beginning(at, keeps), list[int]()
        dropped = self.sequence.table[keeps:]
        try:
            if rest and keeps == full:
                copied.append(self._copy_cut(full, rest))
                sequence.table += copied
            vars(self).update(fields, sequence=sequence)  # one step: a signal comes before or after it
            sequence.clear_after(at)
        finally:
            for row in dropped if self.sequence is sequence else copied:
                self.engine.pool.release(row)

    def _beginning(self, at: int) -> dict[str, Any]:
        """Give the fields of the conversation of the first `at` tokens, beside the rows. Raises `OutOfRange`.

        Effects: archived blocks that this beginning reads get rows again; where the store lacks them, as `bring_back`.
        """
        if not 0 <= at <= len(self.tokens):
            raise OutOfRange(f"cannot fork at {at}, the conversation has {len(self.tokens)} tokens", at=at)
        engine, full = self.engine, at // self.engine.geometry.block_size
        table, unread = self.sequence.table, self.sequence.unread_blocks(full)
        bring_back(engine.residency, table, self.blocks, unread, min(full + 1, len(self.blocks)))
        return {
            "tokens": self.tokens[:at], "blocks": self.blocks[:full], "_keys": self._keys[:full], "_hidden": None,
            "_provisional": self._provisional, "tail_loaded": self.tail_loaded and full == len(self.blocks),
        }  # fmt: skip

    def _copy_cut(self, block: int, rows: int) -> int:
        """Copy the first rows of a block into a pool row of its own: a block may be shared, a tail is written to."""
        row = self.engine.pool.allocate()
        self.engine.pool.copy_cut(self.sequence.table[block], row, rows)
        return row

    def take_placed(self, tokens: Tokens[int]) -> None:
        """Take tokens, from a block boundary on, whose rows were computed for another place and stand in the table.

        For approximate conversations alone: full blocks are stored, and never indexed. Raises `TierFull`.
        """
        self.tokens += tokens
        engine = self.engine
        if sealed := self._name_full():
            announce(engine.store, engine.model_cid, engine.geometry.block_size, self.blocks, self.approx or "placed")
            self.counts.blocks_new += store_blocks(engine.store, None, sealed)
        self._hidden = None

    def close(self) -> None:
        """Give the pool rows back."""
        self.sequence.release()
