"""The part of a live conversation that takes rows which a shared step has computed."""

from collections.abc import Sequence as Tokens
from typing import TYPE_CHECKING

from torch import Tensor

from ...cybergraph.cid import Cid
from ...cybergraph.prefix import PrefixKey
from ..sealing import Sealed, store_blocks

if TYPE_CHECKING:
    from ...cybergraph.index import Index
    from ..engine import Engine
    from ..reuse import Counts
    from ..sequence import Sequence


class Taking:
    """Every row is canonical when it comes, so nothing is swapped at a boundary."""

    engine: "Engine"
    approx: str | None
    tokens: list[int]
    blocks: list[Cid]
    counts: "Counts"
    sequence: "Sequence"
    _keys: list[PrefixKey]
    _hidden: Tensor | None

    def record(self, tokens: Tokens[int], hidden: Tensor) -> None:
        """Take tokens as `take_rows` does, and store, index and share what is now full.

        Failed or stopped before that is stored, the conversation is what it was. Raises `TierFull`.
        """
        length = len(self.tokens)
        try:
            if sealed := self.take_rows(tokens, hidden):
                self.seal(sealed)
        except BaseException:
            self.untake_rows(length)
            raise
        if sealed:
            self.remember(sealed)
            self._merge(len(self.blocks) - len(sealed.cids))
            self.sequence.archive(len(self.blocks))

    def take_rows(self, tokens: Tokens[int], hidden: Tensor) -> Sealed | None:
        """Take tokens whose canonical rows a step has written to the pool; `hidden` is the last one's output.

        Returns what is now full, named and not stored yet: `seal` it, or go back with `untake_rows`. The tail before
        must be canonical. Stopped half-way, the conversation is what it was.
        """
        length, hidden = len(self.tokens), hidden.clone()
        try:
            self._hidden = None
            self.tokens += tokens
            sealed = self._name_full()
            self._hidden = hidden
            self.counts.tokens_computed += len(tokens)
        except BaseException:
            self.untake_rows(length)
            raise
        return sealed

    def untake_rows(self, length: int) -> None:
        """Go back to `length` tokens after `take_rows`. No row of the pool is given back or changed."""
        blocks = length // self.engine.geometry.block_size
        self.counts.tokens_computed -= max(0, len(self.tokens) - length)
        del self.blocks[blocks:], self._keys[blocks:], self.tokens[length:]
        self._hidden = None

    def seal(self, sealed: Sealed) -> None:
        """Store and index what `take_rows` named. Raises `TierFull`."""
        self.counts.blocks_new += store_blocks(self.engine.store, self._index, sealed)

    def _merge(self, first: int) -> None:
        """Use the rows that another conversation has for the same blocks, from block `first` on.

        Both have computed the same, and the pool needs it once: one's own rows are given back.
        """
        residency, table = self.engine.residency, self.sequence.table
        for block in range(first, len(self.blocks)):
            if residency.shelf.holds_row(own := table[block]):
                continue
            with residency.ensure(
                self.blocks[block : block + 1], prev=self.blocks[block - 1] if block else None
            ) as lease:
                if lease.rows:
                    # The lease gives back what it then has. One line, so a signal comes before or after it.
                    table[block], lease.rows[0] = lease.rows[0], own

    @property
    def prefixes(self) -> Tokens[PrefixKey]:
        """Prefix key of each full block."""
        return tuple(self._keys)

    def give_up_tail(self) -> list[int]:
        """Go back to the last block boundary. Returns the tail's tokens, to be computed again with what follows."""
        tail = self.tail
        self._cut_to(len(self.blocks))
        self.counts.tokens_computed -= len(tail)  # counted when they came, and again when they are back
        return tail

    def load_known(self, tokens: Tokens[int]) -> int:
        """Take the blocks of `tokens` that exist, from a block boundary on. Returns how many tokens that were."""
        before = self.boundary
        self._reuse(tokens)
        self.counts.tokens_reused += self.boundary - before
        return self.boundary - before

    # What the other parts of a conversation give.
    if TYPE_CHECKING:

        @property
        def boundary(self) -> int: ...  # noqa: D102
        @property
        def tail(self) -> list[int]: ...  # noqa: D102
        @property
        def _index(self) -> Index | None: ...
        def remember(self, sealed: Sealed) -> None: ...  # noqa: D102
        def _name_full(self) -> Sealed | None: ...
        def _cut_to(self, blocks: int) -> None: ...
        def _reuse(self, pending: Tokens[int]) -> object: ...
