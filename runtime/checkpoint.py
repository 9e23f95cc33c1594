"""Checkpoint and resume: a live conversation as one root, and back."""

from collections.abc import Sequence as Tokens
from dataclasses import replace

from ..cybergraph.chain import build_root, load_root, walk
from ..cybergraph.cid import Cid
from ..cybergraph.errors import Corrupt, IdentityMismatch, NotFound, OutOfRange
from ..cybergraph.identity import require_same
from ..cybergraph.nodes import EMPTY_TAIL, Conversation, Model, Tail
from .engine import Engine
from .finite import first_wrong, require_finite
from .live import Live, Progress
from .tiers import drop_failed


def checkpoint(live: Live, *, title: str, created: str, parent: Cid | None = None, fork_at: int | None = None) -> Cid:
    """Write the root of a live conversation: its segments, and its tail with rows. Returns the root's CID.

    Of a tail with numbers that are not finite the tokens alone are kept.
    """
    engine = live.engine
    tail = EMPTY_TAIL
    if tokens := live.tail:
        rows = engine.pool.tail_leaves(live.sequence.table[-1], len(tokens))
        tail = Tail(tokens=tuple(tokens), prefilled=live.prefilled, domain=None, kv=None)
        if all(first_wrong(engine.geometry, group, each) is None for group, each in enumerate(rows)):
            leaves = [(Cid.of(rows_of_group, "raw", engine.model.leaf_hash), rows_of_group) for rows_of_group in rows]
            engine.store.put_many(leaves, hashed=True)
            tail = replace(tail, domain=engine.domain.rows, kv=tuple(cid for cid, _ in leaves))
    return build_root(
        engine.store,
        model=engine.model_cid,
        block_size=engine.geometry.block_size,
        blocks=live.blocks,
        tail=tail,
        title=title,
        created=created,
        parent=parent,
        fork_at=fork_at,
        approx=live.approx,
        payload_bytes=len(live.tokens) * engine.geometry.bytes_per_token,
    )


def require_model(engine: Engine, root: Conversation) -> None:
    """Check that a conversation was made with this engine's model. Raises `IdentityMismatch` naming the first axis."""
    if root.model != engine.model_cid:
        other = Model.decode(engine.store.get(root.model), verify=root.model)
        require_same(engine.model, other)
        raise IdentityMismatch(f"model {root.model}, this engine runs {engine.model_cid}")


def resume(engine: Engine, root_cid: Cid) -> Live:
    """Load a conversation to go on from it. Its next logits are those of the uninterrupted run, bit for bit.

    A leaf that is missing or corrupt ends reuse there: the rest is computed again from the tokens, and the miss is in
    `counts`. Raises `IdentityMismatch`, `OutOfRange` for more tokens than the model has positions, and `NotFound` or
    `Corrupt` where the page table itself cannot be read.
    """
    live = Live(engine)
    root, blocks, tokens = _open(live, root_cid)
    live.take_recorded(blocks, tokens)
    live.counts.tokens_reused = live.boundary
    live.append(tokens[live.boundary :])
    if root.tail.tokens:
        _restore_tail(live, root.tail)
    return live


def append_recorded(
    live: Live, root_cid: Cid, tokens: Tokens[int], progress: Progress | None = None, *,
    budget_bytes: int | None = None,
) -> None:  # fmt: skip
    """Take a recorded conversation and then `tokens`, into an empty `live`, computing while its blocks come.

    The tail is computed anew with what follows it, so the bytes are those of `resume` and `append`. `budget_bytes`, and
    what is left after an error, as for `append`. Raises as `resume` and `append`.
    """
    root, blocks, known = _open(live, root_cid)
    live.append([*known, *root.tail.tokens, *tokens], progress, budget_bytes=budget_bytes, recorded=blocks)


def _open(live: Live, root_cid: Cid) -> tuple[Conversation, list[Cid], list[int]]:
    """Read a root and its page table: its blocks and their tokens are given, too."""
    engine = live.engine
    root = load_root(engine.store, root_cid)
    require_model(engine, root)
    if root.length > engine.config.max_positions:
        raise OutOfRange(
            f"{root.length} tokens, the model has {engine.config.max_positions} positions",
            hint="`cyberkv run --from REF --select recent` goes on approximately; or fork it earlier",
            tokens=root.length,
        )
    live.approx = root.approx
    steps = list(walk(engine.store, root))
    tokens = [token for step in steps for token in step.block.tokens]
    live.check_tokens([*tokens, *root.tail.tokens])
    return root, [step.cid for step in steps], tokens


def _restore_tail(live: Live, tail: Tail) -> None:
    """Load the tail's rows if this domain made them, else compute them again the way they were made."""
    engine, tokens = live.engine, list(tail.tokens)
    loaded = bool(tail.kv) and tail.domain == engine.domain.rows and _load_tail(live, tail)
    live.restore_tail(tokens, tail.prefilled, loaded=loaded)
    live.tail_loaded = loaded
    if loaded:
        live.counts.tokens_reused += len(tokens)
    else:
        live.counts.tokens_computed += len(tokens)


def _load_tail(live: Live, tail: Tail) -> bool:
    engine, count = live.engine, len(tail.tokens)
    parts = [bytearray(engine.geometry.tail_leaf_bytes(g, count)) for g in range(engine.geometry.leaves_per_block)]
    try:
        engine.store.get_into(tail.kv or (), [memoryview(part) for part in parts])
        for group, (leaf, part) in enumerate(zip(tail.kv or (), parts, strict=True)):
            require_finite(engine.geometry, group, leaf, part)
    except (NotFound, Corrupt) as error:
        live.counts.misses.append(drop_failed(engine.store, live.boundary, error))
        return False
    live.sequence.extend_table(live.boundary + count)
    engine.pool.fill_tail(live.sequence.table[-1], count, parts)
    return True
