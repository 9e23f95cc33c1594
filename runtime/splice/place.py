"""Splice: documents placed into a conversation, in one of three ways that the receipt names."""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import islice, pairwise

import torch
from torch import Tensor

from ...cybergraph.chain import build_root, load_root, walk
from ...cybergraph.cid import Cid
from ...cybergraph.errors import OutOfRange
from ...cybergraph.nodes import EMPTY_TAIL, Tail
from ...cybergraph.prefix import prefix_keys
from ...cybergraph.verdict.kinds import OFF_BY
from ..engine import Engine
from ..live import Live, Progress
from ..pool import Pool
from ..sealing import Unsealed, name_blocks, store_blocks
from .measure import SpliceError, compute_in_full, error_of, text_of
from .receipt import Mode, Piece, Receipt, placed
from .reconcile import Reconciled, reconcile

_MOST_REASON_BYTES = 256


@dataclass(frozen=True, slots=True)
class Text:
    """What is to stand in the result: `before`, the pieces, `after`."""

    before: tuple[int, ...]
    pieces: tuple[Piece, ...]
    after: tuple[int, ...]

    @property
    def tokens(self) -> list[int]:
        """All of it."""
        return [*self.before, *(token for piece in self.pieces for token in piece.tokens), *self.after]

    @property
    def spans(self) -> list[range]:
        """Positions of each piece."""
        ends = [len(self.before)]
        for piece in self.pieces:
            ends.append(ends[-1] + len(piece.tokens))
        return [range(start, end) for start, end in pairwise(ends)]


@dataclass(frozen=True, slots=True)
class Origin:
    """The conversation that documents are placed into."""

    root: Cid
    rows: Tensor
    """Raw rows of the tokens before the documents. Shape: [tokens, layers, K|V, kv_heads, head_dim]."""
    blocks: tuple[Cid, ...]
    """Its full blocks before the documents, in this engine's block size."""
    approx: str | None = None


def splice_exactly(
    engine: Engine, text: Text, progress: Progress | None = None, *, origin: Cid | None = None
) -> tuple[Live, Receipt]:  # fmt: skip
    """Record the text as it would have been without any of it known; what the index has is used.

    `origin` is the conversation that begins with `text.before`: its blocks before the documents are loaded as its root
    names them, as `resume` does, whether the index has them or not. Give the result to `checkpoint`. Raises
    `OutOfRange` where it has more tokens than the model has positions, else as `resume` and `Live.append`.
    """
    check_length(engine, text)
    live = Live(engine)
    try:
        if origin is not None:
            _go_on_from(live, origin, len(text.before))
        live.append(text.tokens[live.boundary :], progress)
    except BaseException:
        live.close()
        raise
    mode = Mode.RECOMPUTE if text.before else Mode.PREFIX
    counts, at = live.counts, len(text.before)
    receipt = Receipt(
        mode, at, placed(text.pieces, at), counts.tokens_computed, counts.tokens_reused, engine.domain.name
    )
    return live, receipt


def _go_on_from(live: Live, origin: Cid, at: int) -> None:
    """Take the full blocks of a root before token `at`, as far as they are exact and of this engine's model."""
    root = load_root(live.engine.store, origin)
    if root.model != live.engine.model_cid or root.approx is not None:
        return  # in blocks of another size, or not what computing gives
    steps = list(islice(walk(live.engine.store, root), at // root.block_size))
    live.take_recorded([step.cid for step in steps], [token for step in steps for token in step.block.tokens])
    live.counts.tokens_reused = live.boundary


def splice_approximately(
    engine: Engine, origin: Origin, text: Text, rows: Items[Tensor], *, share: float, measured: bool,
    title: str, created: str,
) -> tuple[Cid, Receipt]:  # fmt: skip
    """Fit the rows of the pieces in, compute a `share` of their tokens and all of `text.after`, and record the result.

    Shapes: `rows` has one [tokens, layers, K|V, kv_heads, head_dim] for each piece. The root says that it is
    approximate and by how much; its blocks are stored and never indexed, also not by a rebuild after a crash midway,
    for the root is stored before them. `measured` computes the text in full beside it. Raises `OutOfRange`, `TierFull`,
    `UnsafeNumerics`.
    """
    engine.domain.require_sound()
    check_length(engine, text)
    tokens, at = text.tokens, len(text.before)
    made = reconcile(
        engine.decoder, engine.rotary, tokens, _lay_out(engine, origin, text, rows), text.spans, share,
        engine.pool.packing,
    )  # fmt: skip
    error = None
    if measured:
        error = error_of(text_of(engine, tokens, made.cache), compute_in_full(engine, tokens), at)
    tail = len(tokens) % engine.geometry.block_size
    recomputed = len({*made.recomputed, *range(len(tokens) - tail, len(tokens))})
    receipt = Receipt(
        Mode.RECONCILE, at, placed(text.pieces, at), recomputed, len(tokens) - recomputed, engine.domain.name,
        share, made.probe, error,
    )  # fmt: skip
    reason = _reason(origin, receipt, error)
    return _record(engine, origin, tokens, made, reason=reason, title=title, created=created, at=at), receipt


def check_length(engine: Engine, text: Text) -> None:
    """Check that there is something to place, and positions for it. Raises `OutOfRange`."""
    if not all(piece.tokens for piece in text.pieces) or not text.pieces:
        raise OutOfRange("a document without tokens cannot be placed", hint="give another document or span")
    total, most = len(text.tokens), engine.config.max_positions
    if total > most:
        raise OutOfRange(
            f"{total} tokens with the documents, the model has {most} positions",
            hint="place spans of the documents, as `cyberkv retrieve` lists them", tokens=total,
        )  # fmt: skip


def _lay_out(engine: Engine, origin: Origin, text: Text, rows: Items[Tensor]) -> Tensor:
    """Put the rows where their tokens stand; zeros where none are known."""
    g, at = engine.geometry, len(text.before)
    whole = torch.zeros(
        len(text.tokens), g.num_layers, 2, g.num_kv_heads, g.head_dim, dtype=engine.pool.packing.dtype
    )  # fmt: skip
    whole[:at] = origin.rows[:at]
    for span, part in zip(text.spans, rows, strict=True):
        whole[span.start : span.stop] = part
    return whole


def _reason(origin: Origin, receipt: Receipt, error: SpliceError | None) -> str:
    """Say for ever what is approximate, and by how much."""
    words = f"splice: {receipt.share:.0%} of the documents recomputed, K/V of layer 1 {OFF_BY}{receipt.probe:.2g}"
    if error is not None:
        last = max(error.layers[-1].k, error.layers[-1].v)
        words += f", of the last layer by {last:.2g}, KL {error.kl:.2g}"
    if origin.approx:
        words += f"; into: {origin.approx}"
    return words.encode()[:_MOST_REASON_BYTES].decode(errors="ignore")


def _record(
    engine: Engine, origin: Origin, tokens: list[int], made: Reconciled, *, reason: str, title: str, created: str,
    at: int,
) -> Cid:  # fmt: skip
    """Name the full blocks, write the root, then the blocks. The tail goes as tokens: resuming computes its rows."""
    g = engine.geometry
    size, full = g.block_size, len(tokens) // g.block_size
    kept = list(origin.blocks[: at // size])
    windows = [tuple(tokens[block * size : (block + 1) * size]) for block in range(len(kept), full)]
    keys = list(prefix_keys(engine.model_cid, tokens[: full * size], size))[len(kept) :]
    pool = Pool(g, len(windows))
    for i in range(len(windows)):
        start = (len(kept) + i) * size
        pool.rows[i] = pool.packing.pack(made.cache.rows[start : start + size].permute(1, 2, 0, 3, 4))
    unsealed = [Unsealed(i, *each) for i, each in enumerate(zip(windows, keys, strict=True))]
    prev = kept[-1] if kept else None
    sealed = name_blocks(pool, engine.model, engine.model_cid, prev, unsealed, engine.domain.name)
    rest = tuple(tokens[full * size :])
    root = build_root(
        engine.store, model=engine.model_cid, block_size=size, blocks=[*kept, *sealed.cids],
        tail=Tail(rest, len(rest), None, None) if rest else EMPTY_TAIL, payload_bytes=full * g.block_bytes,
        title=title, created=created, parent=origin.root, fork_at=at, approx=reason,
    )  # fmt: skip
    store_blocks(engine.store, None, sealed)
    return root
