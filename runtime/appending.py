"""The part of a live conversation that takes tokens as given, whole blocks at a time, all of them or none.

What is appended is computed from a block boundary on. So a tail is set aside first, computed again with what follows
it, and put back where nothing came of that. Blocks that were named and not stored are dropped again.
"""

import sys
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Tokens
from contextlib import contextmanager
from typing import NamedTuple

from ..cybergraph.cid import Cid
from ..cybergraph.errors import CyberKVError, OutOfRange
from ..cybergraph.prefix import prefix_key
from .canonical import CHUNK_TOKENS, canonical_step
from .decoding import Decoding
from .sealing import Sealed, Sealer, Unsealed, name_blocks

Progress = Callable[[int, int], None]
"""Called with (tokens done, tokens in all)."""


class Before(NamedTuple):
    """How a conversation was before tokens were appended."""

    boundary: int
    tail: int
    """Its tokens."""
    tokens_reused: int
    executed: int
    """Verdicts."""


class Appending(Decoding):
    """Beside going back and what else `Live` does."""

    def append(
        self, tokens: Tokens[int], progress: Progress | None = None, *, budget_bytes: int | None = None,
        recorded: Tokens[Cid] = (),
    ) -> None:  # fmt: skip
        """Take tokens as given: reuse what the index knows, compute the rest in canonical chunks, seal full blocks.

        Known blocks that would load much more slowly than they compute are computed, too (`pace`), and so are those
        that `budget_bytes` of loads do not cover. The `recorded` blocks of a root, the first of an empty conversation,
        are loaded in any case. Where the pool waits layer by layer, the last that are loaded come while the first
        layers are computed; from a block on that does not come whole, everything is computed.
        A tail is computed again with what follows it. Failed or stopped half-way (KeyboardInterrupt), the conversation
        holds the whole chunks that were done, or else what it held before. Raises `UnsafeNumerics`, `OutOfRange`,
        `TierFull`.
        """
        engine = self.engine
        if tokens:
            engine.domain.require_sound()
        elif self.sequence.coming is None:
            return
        self.check_tokens(tokens)
        everything = [*self.tokens, *tokens]
        if len(everything) > engine.config.max_positions:
            raise OutOfRange(
                f"{len(everything)} tokens, the model has {engine.config.max_positions} positions",
                hint="shorten the text, fork earlier, or go on approximately with `cyberkv run --select recent`",
                tokens=len(everything),
            )
        before = Before(self.boundary, len(self.tail), self.counts.tokens_reused, len(self.counts.executed))
        later = True
        with self._tail_set_aside(), self._all_or_none_come(before):
            while True:
                try:
                    if known := recorded[len(self.blocks) :]:
                        self.take_recorded(known, everything[self.boundary :], later=later)
                    self._go_on(everything[self.boundary :], before, progress, budget_bytes, later=later)
                    self.sequence.settle()
                    break
                except CyberKVError:
                    if self.sequence.coming is None or (miss := self.sequence.coming.cut()) is None:
                        raise
                    self._give_up(miss.position_start, before)
                    self._miss(miss)
                    before = before._replace(boundary=min(before.boundary, self.boundary))
                    later = False  # what did not come is looked for once more, and then it is known
                    engine.domain.require_sound()
        self.sequence.archive(len(self.blocks))

    def _go_on(
        self, pending: Tokens[int], before: Before, progress: Progress | None, budget_bytes: int | None, *, later: bool
    ) -> None:
        """Take tokens from the last block boundary on, for `append`."""
        if not pending:
            return
        engine, start = self.engine, self.boundary
        rest = self._reuse(pending, budget_bytes, later=later)
        reused = self._count_reused(before)
        sealer, known, first = Sealer(engine.store, self._index), len(self.blocks), self.boundary
        started_s, named, waits = engine.pace.clock_s(), list[Sealed](), self.sequence.coming is not None
        try:
            self._prefill_chunks(pending[first - start :], sealer, named, progress)
        finally:
            try:
                sealer.close()
            finally:
                self._drop_unstored(known + sealer.stored_blocks)
                self.counts.blocks_new += sealer.new_blocks
                # The old tail's tokens were counted when they came.
                self.counts.tokens_computed += max(0, len(self.tokens) - first - max(0, before.tail - reused))
                self.counts.executed += rest[: len(self.blocks) - known]
                for sealed in named:
                    self.remember(sealed)
        if not waits:  # how long others took says nothing about computing
            engine.pace.note_prefill(len(self.tokens) - first, engine.pace.clock_s() - started_s)

    @contextmanager
    def _all_or_none_come(self, before: Before) -> Iterator[None]:
        """Where the work is ended while blocks are on their way, have all of them or go back to before them."""
        try:
            yield
        except BaseException:
            if (coming := self.sequence.coming) is not None:
                try:
                    if coming.stop():
                        self.sequence.settle()
                finally:
                    if self.sequence.coming is not None:
                        self.sequence.coming = None
                        self._give_up(before.boundary, before)
            raise

    def _give_up(self, position: int, before: Before) -> None:
        """Go back to a block boundary as if the blocks from there on had never been taken."""
        size = self.engine.geometry.block_size
        self._cut_to(position // size)
        del self.counts.executed[before.executed + max(0, position - before.boundary) // size :]
        self._count_reused(before)

    def _count_reused(self, before: Before) -> int:
        """Count what was reused since then, and return it: the old tail's tokens, too, which were counted before."""
        reused = max(0, self.boundary - before.boundary)
        self.counts.tokens_reused = before.tokens_reused + max(0, reused - before.tail)
        return reused

    def settle_tail(self) -> None:
        """Compute a tail again that may not be sealed as it is. Failed or stopped, it is what it was."""
        if not self.settled:
            with self._tail_set_aside() as tail:
                self._prefill(tail)

    @contextmanager
    def _tail_set_aside(self) -> Iterator[list[int]]:
        """Go back to the last block boundary, and give the tail's tokens.

        Where the work is ended before anything came of it, the tail is then again as it was.
        """
        engine, tail, blocks = self.engine, self.tail, len(self.blocks)
        prefilled, loaded = self.prefilled, self.tail_loaded
        rows = engine.pool.tail_leaves(self.sequence.table[blocks], len(tail)) if tail else []
        try:
            self._cut_to(blocks)
            yield tail
        except BaseException:
            if tail and len(self.blocks) == blocks and not self.tail:
                self._cut_to(blocks)
                self.sequence.extend_table(self.boundary + len(tail))
                engine.pool.fill_tail(self.sequence.table[blocks], len(tail), [bytearray(each) for each in rows])
                self.restore_tail(tail, prefilled, loaded=True)
                self.tail_loaded = loaded
            raise

    def _prefill_chunks(
        self, tokens: Tokens[int], sealer: Sealer, named: list[Sealed], progress: Progress | None
    ) -> None:
        """Compute tokens from the boundary on, chunk by chunk, and collect what was `named` and is not stored yet."""
        size = self.engine.geometry.block_size
        chunk = max(size, CHUNK_TOKENS // size * size)
        total, known = len(self.tokens) + len(tokens), len(self.blocks)
        remembered = known
        for start in range(0, len(tokens), chunk):
            if sealed := self._prefill(tokens[start : start + chunk]):
                named.append(sealed)
                sealer.store(sealed)
            stored = known + sealer.stored_blocks  # read once: the other thread goes on
            while named and remembered + len(named[0].cids) <= stored:
                remembered += len(named[0].cids)
                self.remember(named.pop(0))  # before its rows may be archived
            self.sequence.archive(stored)
            if progress:
                progress(len(self.tokens), total)

    def check_tokens(self, tokens: Tokens[int]) -> None:
        """Check that the model knows these tokens: a tokenizer or a foreign block may not. Raises `OutOfRange`."""
        most = self.engine.config.vocab_size
        if wrong := [token for token in tokens if not 0 <= token < most]:
            raise OutOfRange(
                f"token {wrong[0]} is outside the model's vocabulary of {most}",
                hint="the tokenizer, or the conversation, belongs to another model",
                token=wrong[0],
            )

    def _cut_to(self, blocks: int) -> None:
        """Go back to the first `blocks` blocks, without a tail."""
        del self.blocks[blocks:], self._keys[blocks:], self.tokens[blocks * self.engine.geometry.block_size :]
        self.sequence.truncate_table(blocks)
        self.tail_loaded, self._hidden, self._provisional = False, None, sys.maxsize

    def _drop_unstored(self, stored_blocks: int) -> None:
        """After a failure, go back to what is named and stored, as if the rest had not been computed."""
        if stored_blocks < len(self.blocks) or len(self.tail) >= self.engine.geometry.block_size:
            self._cut_to(stored_blocks)

    def _prefill(self, tokens: Tokens[int]) -> Sealed | None:
        """Compute one chunk from a block boundary on, and name its full blocks."""
        start = self.boundary
        self.sequence.extend_table(start + len(tokens))
        hidden = canonical_step(self.engine.decoder, self.sequence, tokens, start, self.engine.domain.floor_rows)
        self._hidden = None  # should the next lines be stopped between two of them
        self.tokens += tokens
        sealed = self._name_full()
        self._hidden = hidden[-1].clone()  # a view would keep the whole chunk in memory
        return sealed

    def _name_full(self) -> Sealed | None:
        """Name the full blocks that have no name yet and take them as this conversation's."""
        engine, size = self.engine, self.engine.geometry.block_size
        unsealed = []
        parent = self._keys[-1] if self._keys else None
        for block in range(len(self.blocks), len(self.tokens) // size):
            window = tuple(self.tokens[block * size : (block + 1) * size])
            parent = prefix_key(engine.model_cid, parent, window)
            unsealed.append(Unsealed(self.sequence.table[block], window, parent))
        if not unsealed:
            return None
        prev = self.blocks[-1] if self.blocks else None
        sealed = name_blocks(engine.pool, engine.model, engine.model_cid, prev, unsealed, engine.domain.name)
        for cid, block_inputs in zip(sealed.cids, unsealed, strict=True):
            self._take_block(cid, block_inputs.tokens)
        return sealed
