"""A live conversation: tokens, their K and V, and the operations on them.

Its rows are in one of three states. Full blocks are canonical and sealed. The tail's first `prefilled` rows are
canonical too, from the last prefill. The rest of the tail was decoded one row at a time, fast and provisional; when
the block fills, it is computed again as one canonical step, swapped in and sealed.
"""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

from torch import Tensor

from ..cybergraph.cid import Cid
from ..cybergraph.errors import OutOfRange
from ..cybergraph.index import Index
from ..cybergraph.prefix import PrefixKey, prefix_key
from .adopt import Miss, adopt_blocks
from .canonical import CHUNK_TOKENS, canonical_step, single_step
from .engine import Engine
from .sampling import Sampling
from .sealing import Sealed, Sealer, Unsealed, name_blocks, store_blocks

Progress = Callable[[int, int], None]
"""Called with (tokens done, tokens in all)."""


@dataclass(slots=True)
class Counts:
    """What the operations on one conversation cost so far."""

    tokens_reused: int = 0
    """Tokens whose K and V were loaded instead of computed."""
    tokens_computed: int = 0
    """Tokens that went through the model: new ones, and a tail computed again on resume; the repeat of a swap not."""
    blocks_new: int = 0
    """Blocks sealed here."""
    misses: list[Miss] = field(default_factory=list)
    """Why reuse ended, where it could have gone on."""


class Live:
    """One conversation in memory. Not safe for use by several threads."""

    def __init__(self, engine: Engine, *, approx: str | None = None) -> None:
        self.engine = engine
        self.approx = approx
        """Why the bytes are not exact, or None. What follows from them is not exact either: it is stored and never
        indexed."""
        self.tokens: list[int] = []
        self.blocks: list[Cid] = []
        """Sealed blocks, in order."""
        self.prefilled = 0
        """Canonical rows at the start of the tail."""
        self.counts = Counts()
        self.sequence = engine.new_sequence()
        self._keys: list[PrefixKey] = []
        self._hidden: Tensor | None = None

    @property
    def boundary(self) -> int:
        """Position of the first token after the last full block."""
        return len(self.blocks) * self.engine.geometry.block_size

    @property
    def _index(self) -> Index | None:
        return None if self.approx else self.engine.index

    @property
    def tail(self) -> list[int]:
        """The tokens after the last full block."""
        return self.tokens[self.boundary :]

    def append(self, tokens: Tokens[int], progress: Progress | None = None) -> None:
        """Take tokens as given: reuse what the index knows, compute the rest in canonical chunks, seal full blocks.

        Known blocks that would load much more slowly than they compute are computed, too (`pace`).
        A tail is computed again with what follows it. Stopped half-way (KeyboardInterrupt), the conversation holds the
        whole chunks that were done. Raises `UnsafeNumerics`, `OutOfRange`, `TierFull`.
        """
        engine, start = self.engine, self.boundary
        if not tokens:
            return
        engine.domain.require_sound()
        pending = self.tail + list(tokens)
        self.check_tokens(tokens)
        total = start + len(pending)
        if total > engine.config.max_positions:
            raise OutOfRange(
                f"{total} tokens, the model has {engine.config.max_positions} positions",
                hint="shorten the text or fork the conversation earlier",
                tokens=total,
            )
        carried = len(self.tail)
        self._cut_to(len(self.blocks))
        self._reuse(self._known(pending), pending)
        reused = self.boundary - start
        self.counts.tokens_reused += max(0, reused - carried)
        sealer, known, first = Sealer(engine.store, self._index), len(self.blocks), self.boundary
        started_s = engine.pace.clock_s()
        try:
            self._prefill_chunks(pending[reused:], sealer, progress)
        finally:
            try:
                sealer.close()
            finally:
                self._drop_unstored(known + sealer.stored_blocks)
                # The old tail's tokens were counted when they came.
                self.counts.tokens_computed += max(0, len(self.tokens) - first - max(0, carried - reused))
        engine.pace.note_prefill(len(self.tokens) - first, engine.pace.clock_s() - started_s)

    def _prefill_chunks(self, tokens: Tokens[int], sealer: Sealer, progress: Progress | None) -> None:
        """Compute tokens from the boundary on, chunk by chunk."""
        size = self.engine.geometry.block_size
        chunk = max(size, CHUNK_TOKENS // size * size)
        total = len(self.tokens) + len(tokens)
        for start in range(0, len(tokens), chunk):
            self._prefill(tokens[start : start + chunk], sealer)
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

    def _known(self, pending: Tokens[int]) -> list[Cid]:
        """Find the longest run of blocks that the index has for the next tokens."""
        engine, size = self.engine, self.engine.geometry.block_size
        keys, parent = [], self._keys[-1] if self._keys else None
        for start in range(0, len(pending) - size + 1, size):
            parent = prefix_key(engine.model_cid, parent, pending[start : start + size])
            keys.append(parent)
        last = self.blocks[-1] if self.blocks else None
        return engine.index.lookup_chain(keys, engine.domain.name, after=last)

    def _reuse(self, known: Tokens[Cid], pending: Tokens[int]) -> None:
        """Load the known blocks of the next tokens, unless the first of them show that the rest is computed faster."""
        pace, geometry, before = self.engine.pace, self.engine.geometry, len(self.blocks)
        first, started_s = pace.first_blocks(len(known), geometry.block_bytes), pace.clock_s()
        self.adopt(known[:first], pending)
        rest = len(known) - first
        if not rest or len(self.blocks) < before + first:
            return
        choice = pace.cheaper_to_compute(
            rest * geometry.block_bytes, tokens=rest * geometry.block_size,
            loaded_bytes=first * geometry.block_bytes, loaded_s=pace.clock_s() - started_s,
        )  # fmt: skip
        if choice:
            self.counts.misses.append(Miss(self.boundary, choice.reason, str(known[first])))
        else:
            self.adopt(known[first:], pending[first * geometry.block_size :])

    def adopt(self, blocks: Tokens[Cid], tokens: Tokens[int]) -> None:
        """Load leading blocks that verify and bind to `tokens`; the first failure is kept as a miss."""
        engine, size = self.engine, self.engine.geometry.block_size
        prev = self.blocks[-1] if self.blocks else None
        adopted, miss = adopt_blocks(engine, self.sequence, blocks, tokens, prev)
        for i, cid in enumerate(adopted):
            self._take_block(cid, tokens[i * size : (i + 1) * size])
        if adopted:
            self._hidden = None
        if miss and all(known.position_start != miss.position_start for known in self.counts.misses):
            self.counts.misses.append(miss)

    def _take_block(self, cid: Cid, tokens: Tokens[int]) -> None:
        parent = self._keys[-1] if self._keys else None
        self._keys.append(prefix_key(self.engine.model_cid, parent, tokens))
        self.tokens[self.boundary : self.boundary + len(tokens)] = tokens
        self.blocks.append(cid)

    def _cut_to(self, blocks: int) -> None:
        """Go back to the first `blocks` blocks, without a tail."""
        del self.blocks[blocks:], self._keys[blocks:], self.tokens[blocks * self.engine.geometry.block_size :]
        self.sequence.truncate_table(blocks)
        self.prefilled = 0
        self._hidden = None

    def _drop_unstored(self, stored_blocks: int) -> None:
        """After a failed write, go back to what is stored, as if the rest had not been computed."""
        if stored_blocks < len(self.blocks):
            self.counts.blocks_new -= len(self.blocks) - stored_blocks
            self._cut_to(stored_blocks)

    def _prefill(self, tokens: Tokens[int], sealer: Sealer) -> None:
        """Compute one chunk from a block boundary on, and seal its full blocks."""
        start = self.boundary
        self.sequence.extend_table(start + len(tokens))
        hidden = canonical_step(self.engine.decoder, self.sequence, tokens, start)
        self.tokens += tokens
        if sealed := self._name_full():
            sealer.store(sealed)
        self.prefilled = len(self.tail)
        self._hidden = hidden[-1].clone() if self.tail else None  # a view would keep the whole chunk in memory

    def _name_full(self) -> Sealed | None:
        """Name the full blocks that have no name yet and count them as this conversation's."""
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
        self.counts.blocks_new += len(sealed.cids)
        return sealed

    def decode(self, token: int) -> None:
        """Extend by one token: one fast provisional row, or, if it fills the block, the canonical step over it."""
        engine, size, position = self.engine, self.engine.geometry.block_size, len(self.tokens)
        engine.domain.require_sound()
        if position >= engine.config.max_positions:
            raise OutOfRange(
                f"the model's {engine.config.max_positions} positions are used up", hint="fork the conversation earlier"
            )
        self.sequence.extend_table(position + 1)
        if (position + 1) % size:
            hidden = single_step(engine.decoder, self.sequence, [token], position)
            self.tokens.append(token)
        else:
            self._fill(token)
            hidden = None
        self.counts.tokens_computed += 1
        self._hidden = None if hidden is None else hidden[-1].clone()

    def _fill(self, token: int) -> None:
        """Compute the tail and `token` as one canonical step into another pool row, seal it, and only then swap rows.

        Stopped or failed half-way, the conversation is what it was.
        """
        engine, sequence, position, known = self.engine, self.sequence, len(self.tokens), len(self.blocks)
        provisional, sequence.table[-1] = sequence.table[-1], engine.pool.allocate()
        try:
            canonical_step(engine.decoder, sequence, [*self.tail, token], self.boundary)
            self.tokens.append(token)
            if sealed := self._name_full():
                store_blocks(engine.store, self._index, sealed)
        except BaseException:
            self.counts.blocks_new -= len(self.blocks) - known
            del self.blocks[known:], self._keys[known:], self.tokens[position:]
            engine.pool.release(sequence.table[-1])
            sequence.table[-1] = provisional
            sequence.heat_rows(self.boundary, len(self.tail))
            raise
        engine.pool.release(provisional)
        self.prefilled = 0

    def next_logits(self) -> Tensor:
        """Scores of the next token. Shapes: [vocab_size] float32. After a load, one step is repeated for them."""
        if self._hidden is None:
            self._hidden = self._repeat_last_step()
        return self.engine.decoder.logits(self._hidden)

    def _repeat_last_step(self) -> Tensor:
        """Compute the last row's output again, leaving stored rows as they are.

        Within a tail, the way its row was computed. At a block boundary, as one row over the sealed rows: a third of
        the time of the canonical step, which a resume would have to pay. So it is done at every boundary, not only
        after a load: the scores are those of the uninterrupted run.
        """
        if not self.tokens:
            raise OutOfRange("an empty conversation has no next token", hint="append a prompt first")
        decoder, sequence = self.engine.decoder, self.sequence
        sequence.frozen = True
        try:
            if not self.tail or len(self.tail) > self.prefilled:
                return single_step(decoder, sequence, self.tokens[-1:], len(self.tokens) - 1)[-1]
            return canonical_step(decoder, sequence, self.tail, self.boundary)[-1]
        finally:
            sequence.frozen = False

    def restore_tail(self, tokens: Tokens[int], prefilled: int, *, loaded: bool) -> None:
        """Take a tail as it was recorded: with `loaded`, its rows are in the pool row already; else compute them.

        The first `prefilled` tokens are one canonical step, the others single steps, as when they were made.
        """
        decoder, start = self.engine.decoder, self.boundary
        self.tokens += tokens
        self.prefilled = prefilled
        self._hidden = None
        if loaded:
            self.sequence.reserve(start + len(tokens))
            self.sequence.heat_rows(start, len(tokens))
            return
        self.sequence.extend_table(start + len(tokens))
        if prefilled:
            self._hidden = canonical_step(decoder, self.sequence, tokens[:prefilled], start)[-1]
        if rest := tokens[prefilled:]:
            self._hidden = single_step(decoder, self.sequence, rest, start + prefilled)[-1]

    def generate(self, max_tokens: int, sampling: Sampling, stop: frozenset[int] = frozenset()) -> Iterator[int]:
        """Choose and record up to `max_tokens` tokens, yielding each; a stop token ends it and is not recorded."""
        for _ in range(max_tokens):
            token = sampling.choose(self.next_logits(), len(self.tokens))
            if token in stop or len(self.tokens) >= self.engine.config.max_positions:
                return
            self.decode(token)
            yield token

    def fork(self, at: int) -> "Live":
        """Start another conversation from the first `at` tokens; full blocks are shared, not copied.

        Raises `OutOfRange` outside 0 to the length.
        """
        if not 0 <= at <= len(self.tokens):
            raise OutOfRange(f"cannot fork at {at}, the conversation has {len(self.tokens)} tokens", at=at)
        size = self.engine.geometry.block_size
        child, full = Live(self.engine, approx=self.approx), at // size
        child.tokens = self.tokens[: full * size]
        child.blocks, child._keys = self.blocks[:full], self._keys[:full]
        child.sequence.reserve(at)
        child.sequence.table = [self.engine.pool.retain(row) for row in self.sequence.table[:full]]
        child.sequence.heat_blocks(0, full)
        if rest := self.tokens[full * size : at]:
            prefilled = len(rest) if full < len(self.blocks) else min(len(rest), self.prefilled)
            child.restore_tail(rest, prefilled, loaded=False)
        return child

    def close(self) -> None:
        """Give the pool rows back."""
        self.sequence.release()
