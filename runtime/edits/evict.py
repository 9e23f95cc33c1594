"""Taking tokens out of a live conversation: exactly by computing again, by going back, or approximately.

Whatever stops an edit half-way (a full pool, a full disk, Ctrl-C), the conversation is as before it or as after it: the
new state is built beside the old one and takes its place in one step. Blocks that were stored on the way stay in the
store until they are collected, and index entries that are gone already cost a later lookup a miss.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from itertools import pairwise
from typing import Final, NamedTuple

import torch

from ...cybergraph.cid import Cid
from ...cybergraph.errors import OutOfRange
from ..live import Live, Progress
from ..pool import on_host
from ..reuse import Counts
from ..rings.archive import bring_back
from .derived import give_up
from .receipt import Cut, EditReceipt, Mode
from .refusal import refusal

MAX_REASON_BYTES: Final = 256


def evict(
    live: Live,
    cuts: Sequence[Cut],
    mode: Mode = "exact",
    *,
    progress: Progress | None = None,
    name: str | None = None,
    elsewhere: Sequence[str] = (),
) -> EditReceipt:
    """Take the tokens of `cuts` (in order, not touching twice) out of a conversation.

    `exact` keeps the blocks before the first cut and computes all that came after again: bit-equal to a run that never
    saw the cuts. An approximate conversation is computed again from its start, and is exact then. `rollback` takes the
    end away and computes nothing. `fast` drops rows and moves the others forward, raw K rotated once to its new place,
    V as it was: nothing is computed and memory is freed, but the influence of the span survives in the deeper layers of
    what came after it. So the result is marked approximate and never indexed, and nothing is forgotten.

    Effects: index entries of blocks that held the cuts, and of all that continue those, are taken out, but for what the
    head of another name than `name` holds. `elsewhere` comes into the receipt as it is. Raises what `refusal` gives,
    `UnsupportedModel` for `exact` and `fast` on a device, `TierFull`, and `NotFound` or `Corrupt` for an archived block
    that is to be read again and cannot.
    """
    if error := refusal(live, cuts, mode):
        raise error
    if mode != "rollback":
        on_host(live.engine.pool, f"evicting in mode {mode}")
    before, length = list(live.blocks), len(live.tokens)
    done = _EDITS[mode](live, cuts, name, progress)
    after = set(live.blocks)
    return EditReceipt(
        mode=mode, exact=live.approx is None, recomputed_tokens=done.recomputed_tokens,
        dropped_tokens=length - len(live.tokens), dropped_blocks=sum(cid not in after for cid in before),
        invalidated=done.invalidated, elsewhere=tuple(elsewhere),
        domain=live.engine.domain.name if mode == "exact" else None,
    )  # fmt: skip


def open_branch(live: Live) -> Live:
    """Open a span isolated: a conversation that has read all so far, and that `live` never reads.

    Later tokens of `live` go on from here, so `drop_branch` is exact and costs nothing.
    """
    return live.fork(len(live.tokens))


def drop_branch(
    live: Live, branch: Live, at: int, *, name: str | None = None, elsewhere: Sequence[str] = ()
) -> EditReceipt:  # fmt: skip
    """Drop what `open_branch` gave when `live` had `at` tokens. `live` is untouched, `branch` is closed.

    Effects: as in `evict`, for the blocks of the branch alone; `name` is that of the branch. Raises `OutOfRange` for
    what is no branch of `live`.
    """
    if branch.engine is not live.engine or not 0 <= at <= min(len(branch.tokens), len(live.tokens)) or (
        branch.tokens[:at] != live.tokens[:at]
    ):  # fmt: skip
        raise OutOfRange(f"the two conversations do not have {at} tokens in common", hint="give what `open_branch` "
                         "gave, and the tokens there were then", at=at)  # fmt: skip
    dropped = branch.blocks[at // live.engine.geometry.block_size :]
    invalidated = _invalidate(branch, dropped, kept=live.blocks, name=name)
    receipt = EditReceipt(
        mode="branch", exact=live.approx is None, recomputed_tokens=0, dropped_tokens=len(branch.tokens) - at,
        dropped_blocks=len(dropped), invalidated=invalidated, elsewhere=tuple(elsewhere), domain=None,
    )  # fmt: skip
    branch.close()
    return receipt


class _Done(NamedTuple):
    """What one edit has cost."""

    recomputed_tokens: int
    invalidated: int


def _exact(live: Live, cuts: Sequence[Cut], name: str | None, progress: Progress | None) -> _Done:
    size = live.engine.geometry.block_size
    start = 0 if live.approx else cuts[0].start // size * size
    with _replacing(live, Live(live.engine) if live.approx else live.fork(start)) as draft:
        draft.append([live.tokens[at] for at in _survivors(live, cuts, start)], progress)
        return _Done(draft.counts.tokens_computed, _take(live, draft, name))


def _rollback(live: Live, cuts: Sequence[Cut], name: str | None, _progress: Progress | None) -> _Done:
    at = cuts[0].start
    kept = at // live.engine.geometry.block_size
    invalidated = _invalidate(live, live.blocks[kept:], kept=live.blocks[:kept], name=name)
    live.rollback(at)
    return _Done(0, invalidated)


def _fast(live: Live, cuts: Sequence[Cut], name: str | None, _progress: Progress | None) -> _Done:
    size = live.engine.geometry.block_size
    first = cuts[0].start // size
    positions = _survivors(live, cuts, first * size)
    with _replacing(live, live.fork(first * size)) as draft:
        draft.approx = _reason(live.approx, cuts)
        _move_rows(live, draft, first, positions)
        draft.take_placed([live.tokens[at] for at in positions])
        draft.sequence.heat_blocks(first, len(draft.blocks))
        if draft.tail:
            draft.sequence.heat_rows(draft.boundary, len(draft.tail))
        draft.sequence.archive(len(draft.blocks))
        return _Done(0, _take(live, draft, name))


_EDITS: Final[dict[Mode, Callable[[Live, Sequence[Cut], str | None, Progress | None], _Done]]] = {
    "exact": _exact, "rollback": _rollback, "fast": _fast,
}  # fmt: skip


def _survivors(live: Live, cuts: Sequence[Cut], start: int) -> list[int]:
    """List the positions from `start` on that are in no cut."""
    edges = [start, *(at for cut in cuts for at in cut), len(live.tokens)]
    return [at for first, last in list(pairwise(edges))[::2] for at in range(first, last)]


def _move_rows(live: Live, draft: Live, first_block: int, positions: Sequence[int]) -> None:
    """Copy the raw rows of `positions` to where they stand in the draft, from `first_block` on."""
    engine, size = live.engine, live.engine.geometry.block_size
    rows = on_host(engine.pool, "moving rows").rows
    bring_back(engine.residency, live.sequence.table, live.blocks, first_block, len(live.blocks))
    end = first_block * size + len(positions)
    draft.sequence.reserve(end)
    draft.sequence.extend_table(end)
    table = torch.tensor(live.sequence.table)
    for block, start in enumerate(range(0, len(positions), size), first_block):
        at = torch.tensor(positions[start : start + size])
        moved = rows[table[at // size], :, :, at % size]  # [n, num_layers, K|V, kv_heads, head_dim]
        rows[draft.sequence.table[block], :, :, : len(at)] = moved.permute(1, 2, 0, 3, 4)


def _reason(before: str | None, cuts: Sequence[Cut]) -> str:
    """Say why what comes of a fast eviction is approximate. The text itself is not named, not even by a hash."""
    reason = f"fast eviction of {', '.join(map(str, cuts))}: its influence survives in deeper layers"
    if len(reason.encode()) > MAX_REASON_BYTES:
        reason = (
            f"fast eviction of {len(cuts)} spans from {cuts[0].start} on: their influence survives in deeper layers"
        )
    joined = f"{before}; {reason}" if before else reason
    return joined if len(joined.encode()) <= MAX_REASON_BYTES else reason


def _invalidate(live: Live, dropped: Sequence[Cid], *, kept: Sequence[Cid], name: str | None) -> int:
    """Take what follows from the dropped blocks out of the index, as far as no other name holds it."""
    engine = live.engine
    return give_up(engine.store, engine.index, engine.model_cid, dropped, kept=kept, name=name)


def _take(live: Live, draft: Live, name: str | None) -> int:
    """Make the draft's state that of `live`, and give the number of index entries that went."""
    shared = set(draft.blocks)
    dropped = [cid for cid in live.blocks if cid not in shared]
    invalidated = _invalidate(live, dropped, kept=draft.blocks, name=name)
    one, two = live.counts, draft.counts
    counts = Counts(**{each.name: getattr(one, each.name) + getattr(two, each.name) for each in fields(Counts)})
    vars(live).update({**vars(draft), "counts": counts})  # one step: a signal comes before or after it
    return invalidated


@contextmanager
def _replacing(live: Live, draft: Live) -> Iterator[Live]:
    """Give the pool rows back of whichever of the two states is not that of `live` at the end."""
    before = live.sequence
    try:
        yield draft
    finally:
        (before if live.sequence is draft.sequence else draft.sequence).release()
