"""The part of a live conversation that goes on token by token, and gives scores.

Where a row alone has the canonical bytes (`Domain.floor_rows`), each row is canonical when it comes. Elsewhere it is
fast and provisional: when the block fills, its tokens are computed again as one canonical step, swapped in and sealed.
The same is done for a block whose first rows were loaded with a root: what is sealed here was computed here.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Tokens
from typing import TYPE_CHECKING, cast

from torch import Tensor

from ..cybergraph.errors import OutOfRange
from ..cybergraph.index import Index
from .attention.panels import FLOOR_ROWS
from .canonical import canonical_step, single_step
from .reuse import Reusing
from .sampling import Sampling
from .sealing import store_blocks
from .steps.drafting import Drafter
from .steps.speculation import speculate
from .steps.taking import Taking

if TYPE_CHECKING:
    from .live import Live


class Decoding(Reusing, Taking):
    """Beside prefill and what else `Live` does."""

    tail_loaded: bool
    _provisional: int

    @property
    def prefilled(self) -> int:
        """Canonical rows at the start of the tail."""
        return min(len(self.tail), max(0, self._provisional - self.boundary))

    @property
    def settled(self) -> bool:
        """Whether the tail may be sealed as it is: all of it is canonical and was computed here."""
        return not self.tail_loaded and self.prefilled == len(self.tail)

    def decode(self, token: int) -> None:
        """Extend by one token. Stopped or failed half-way, the conversation is as before it or as after it."""
        engine, size, position = self.engine, self.engine.geometry.block_size, len(self.tokens)
        engine.domain.require_sound()
        if position >= engine.config.max_positions:
            raise OutOfRange(
                f"the model's {engine.config.max_positions} positions are used up", hint="fork the conversation earlier"
            )
        self.sequence.extend_table(position + 1)
        fills = not (position + 1) % size
        if engine.domain.floor_rows == 1 and (self.settled or not fills):
            self.record([token], single_step(engine.decoder, self.sequence, [token], position)[-1])
        elif fills:
            self._fill(token)
        else:
            hidden = single_step(engine.decoder, self.sequence, [token], position)
            self._hidden = None  # should the next lines be stopped between two of them
            self._provisional = min(self._provisional, position)
            self.tokens.append(token)
            self._hidden = hidden[-1].clone()
            self.counts.tokens_computed += 1
        engine.residency.step()

    def _fill(self, token: int) -> None:
        """Compute the tail and `token` as one canonical step into another pool row, seal it, and only then swap rows.

        Stopped or failed half-way, the conversation is what it was.
        """
        engine, sequence, position, known = self.engine, self.sequence, len(self.tokens), len(self.blocks)
        provisional, sequence.table[-1] = sequence.table[-1], engine.pool.allocate()
        floor_rows = engine.domain.floor_rows
        try:
            hidden = canonical_step(engine.decoder, sequence, [*self.tail, token], self.boundary, floor_rows)
            self.tokens.append(token)
            if sealed := self._name_full():
                self.counts.blocks_new += store_blocks(engine.store, self._index, sealed)
        except BaseException:
            del self.blocks[known:], self._keys[known:], self.tokens[position:]
            engine.pool.release(sequence.table[-1])
            sequence.table[-1] = provisional
            sequence.heat_rows(self.boundary, len(self.tail))
            raise
        engine.pool.release(provisional)
        self.tail_loaded = False
        self._hidden = hidden[-1].clone()
        self.counts.tokens_computed += 1
        if sealed:
            self.remember(sealed)
        sequence.archive(len(self.blocks))

    def next_logits(self) -> Tensor:
        """Scores of the next token. Shapes: [vocab_size] float32. After a load, one step is repeated for them."""
        return self.engine.decoder.logits(self.last_output())

    def last_output(self) -> Tensor:
        """Give the output of the last token's row. Shape: [hidden_size]. After a load, one step is repeated for it."""
        if self._hidden is None:
            self._hidden = self._repeat_last_step()
        return self._hidden

    def _repeat_last_step(self) -> Tensor:
        """Compute the last row's output again the way its row was computed, leaving stored rows as they are.

        A canonical row's output depends on the rows that are kept and on its position alone, so the rows before it in
        the same step need not be those it was computed with.
        """
        if not self.tokens:
            raise OutOfRange("an empty conversation has no next token", hint="append a prompt first")
        decoder, sequence, last = self.engine.decoder, self.sequence, len(self.tokens) - 1
        sequence.frozen = True
        try:
            if self.engine.domain.floor_rows == 1 or len(self.tail) > self.prefilled:
                return single_step(decoder, sequence, self.tokens[-1:], last)[-1]
            start = last // FLOOR_ROWS * FLOOR_ROWS
            return canonical_step(decoder, sequence, self.tokens[start:], start)[-1]
        finally:
            sequence.frozen = False

    def restore_tail(self, tokens: Tokens[int], prefilled: int, *, loaded: bool) -> None:
        """Take a tail as it was recorded: with `loaded`, its rows are in the pool row already; else compute them.

        The first `prefilled` tokens are one canonical step. Where a row alone is not canonical, the others are single
        steps, as when they were made.
        """
        engine, start = self.engine, self.boundary
        decoder, floor_rows = engine.decoder, engine.domain.floor_rows
        if floor_rows == 1 and not loaded:
            prefilled = len(tokens)
        self._hidden = None
        if prefilled < len(tokens):
            self._provisional = start + prefilled
        self.tokens += tokens
        if loaded:
            self.sequence.reserve(start + len(tokens))
            self.sequence.heat_rows(start, len(tokens))
            return
        self.sequence.extend_table(start + len(tokens))
        if prefilled:
            self._hidden = canonical_step(decoder, self.sequence, tokens[:prefilled], start, floor_rows)[-1]
        if rest := tokens[prefilled:]:
            self._hidden = single_step(decoder, self.sequence, rest, start + prefilled)[-1]

    def generate(
        self,
        max_tokens: int,
        sampling: Sampling,
        stop: frozenset[int] = frozenset(),
        drafter: Drafter | None = None,
    ) -> Iterator[int]:
        """Choose and record up to `max_tokens` tokens, yielding each; a stop token ends it and is not recorded.

        With a drafter, several tokens are checked in one step and every row is canonical (`steps.speculation`): the
        answer does not depend on what is drafted. Without one, rows are computed alone, fast.
        """
        if drafter and not self.engine.domain.scattered:
            yield from speculate(cast("Live", self), max_tokens, sampling, stop, drafter)
            return
        for _ in range(max_tokens):
            token = sampling.choose(self.next_logits(), len(self.tokens))
            if token in stop or len(self.tokens) >= self.engine.config.max_positions:
                return
            self.decode(token)
            yield token

    # What the other parts of a conversation give.
    if TYPE_CHECKING:

        @property
        def _index(self) -> Index | None: ...
