"""Going on from a conversation while it comes: its tokens are known, its rows are waited for layer by layer.

What comes late, damaged or not at all ends the step that needed it, before anything was sealed: the conversation goes
back to the blocks that come whole, and the rest is computed from the tokens, as after a miss from the store.
"""

from collections.abc import Sequence as Tokens

from ...cybergraph.errors import CyberKVError, IdentityMismatch, OutOfRange
from ...cybergraph.identity import require_same
from ...cybergraph.nodes import Model
from ..live import Live, Progress
from ..pace import Pace
from ..pool import on_host
from ..reuse import taken
from .arrival import Arrival


def append_arriving(live: Live, arrival: Arrival, tokens: Tokens[int], progress: Progress | None = None) -> int:
    """Take the conversation that `arrival` has opened and then `tokens`, into an empty `live`, computing meanwhile.

    Returns the number of its blocks that came and are used.
    The tail is computed anew with what follows it, so the bytes are those of `resume` and `append`. What does not come
    is one miss, with its reason. Effects: the arrival is finished, everything used is stored. After an error `live`
    is empty again, unless all had come: then as `Live.append` leaves it. Raises as `Live.append`, `IdentityMismatch`,
    `UnsupportedModel` on a device, and `TierFull` where the store has no room.
    """
    engine, root, steps = live.engine, arrival.root, arrival.steps
    on_host(engine.pool, "computing while blocks come from peers")
    if root.model != engine.model_cid:
        require_same(engine.model, Model.decode(arrival.desk.get(root.model)))
        raise IdentityMismatch(f"model {root.model}, this engine runs {engine.model_cid}")
    live.approx = root.approx
    known = [token for step in steps for token in step.block.tokens]
    everything = [*known, *root.tail.tokens, *tokens]
    live.check_tokens(everything)
    if len(everything) > engine.config.max_positions:
        raise OutOfRange(
            f"{len(everything)} tokens, the model has {engine.config.max_positions} positions",
            hint="fork it earlier, or fetch it and go on with `cyberkv run --from REF --select recent`",
            tokens=len(everything),
        )
    pace, engine.pace = engine.pace, Pace()  # how long a network takes says nothing about computing
    try:
        first = _begin(live, arrival)
        size, marked = engine.geometry.block_size, len(live.counts.executed)
        live.append(everything[len(steps) * size :], progress)
        _finish(arrival)
    except BaseException:
        if not arrival.has_come():
            live._cut_to(0)  # noqa: SLF001
        raise
    finally:
        engine.pace = pace
        arrival.close()
    kept = arrival.kept_blocks
    exact = live.exact_blocks([step.cid for step in steps])
    came = [
        taken(
            i, size, steps[i].cid, arrival.tier_of(steps[i]), engine.geometry.block_bytes,
            approx=live.approx if i >= exact else None,
        )
        for i in range(first, kept)
    ]  # fmt: skip
    live.counts.executed[marked:marked] = came
    live.counts.tokens_reused += kept * size
    return kept


def _begin(live: Live, arrival: Arrival) -> int:
    """Take the blocks that are in memory already, and start the others. Returns the number of the first of these."""
    residency, steps = live.engine.residency, arrival.steps
    cids = [step.cid for step in steps]
    known = next((i for i, cid in enumerate(cids) if residency.shelf.tier_of(cid) is None), len(cids))
    live.adopt(cids[:known], [token for step in steps[:known] for token in step.block.tokens])
    first = len(live.blocks)
    for step in steps[first:]:
        live._take_block(step.cid, step.block.tokens)  # noqa: SLF001
    arrival.start(live.sequence, first, residency)
    return first


def _finish(arrival: Arrival) -> None:
    """Wait for what the conversation does not use either, and is stored. What does not come is no miss any more."""
    while True:
        try:
            return arrival.finish()
        except CyberKVError:
            if arrival.cut() is None:
                raise
