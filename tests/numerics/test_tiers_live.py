"""Conversations over tiers: rows that are shared and kept, budgets, and counters that follow from what was done."""

from collections.abc import Callable
from itertools import count

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cyberkv.cybergraph.nodes import Block
from cyberkv.cybergraph.peers.local import StorePeer
from cyberkv.cybergraph.store.wrap import CountingStore
from cyberkv.cybergraph.verdict import BlockVerdict, Tier, Verdict
from cyberkv.runtime.checkpoint import checkpoint, resume
from cyberkv.runtime.edits.evict import evict
from cyberkv.runtime.edits.receipt import Cut
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.pace import Pace

Engines = Callable[..., Engine]
TOKENS = [(13 * i * i + 11 * i + 5) % 250 for i in range(200)]
L0, L1, L2, L3 = Tier


def test_a_real_peer_is_a_source(tiny_engine: Engines) -> None:
    recorded = Live(tiny_engine())
    recorded.append(TOKENS)
    root = checkpoint(recorded, title="", created="")
    elsewhere = recorded.engine.store
    engine = tiny_engine(home="other")
    engine.sources, engine.may_ask = [StorePeer(elsewhere)], lambda _: True
    for cid in elsewhere.cids():
        if cid.codec == "dag-cbor":
            engine.store.put(cid, elsewhere.get(cid))
    live = resume(engine, root)
    assert [each.tier for each in live.counts.executed] == [L3] * 12
    assert torch.equal(live.next_logits(), recorded.next_logits())
    assert (
        engine.store.missing([leaf for leaf in elsewhere.cids() if leaf.codec == "raw"]) != []
    )  # the tail's are not asked


def test_a_second_conversation_uses_the_rows_of_the_first(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    store = engine.store = CountingStore(engine.store)
    first = Live(engine)
    first.append(TOKENS)
    used, reads = engine.pool.used_blocks, store.counts["get_into"]
    second = Live(engine)
    second.append(TOKENS)
    assert [each.verdict for each in second.counts.executed] == [Verdict.HIT] * 12
    assert second.sequence.table[:12] == first.sequence.table[:12]
    assert (engine.pool.used_blocks, store.counts["get_into"]) == (used + 1, reads)  # a tail of its own
    assert torch.equal(second.next_logits(), first.next_logits())
    first.close()
    second.close()
    assert (engine.pool.used_blocks, engine.pool.kept_blocks) == (0, 12)
    third = Live(engine)
    third.append(TOKENS)
    assert (third.counts.tokens_reused, store.counts["get_into"]) == (192, reads)
    engine.residency.reset()
    cold = Live(engine)
    cold.append(TOKENS)  # the control
    assert [each.verdict for each in cold.counts.executed] == [Verdict.FAULT] * 12
    assert store.counts["get_into"] > reads
    assert torch.equal(cold.next_logits(), third.next_logits())


def test_what_the_store_lost_is_given_back_from_memory(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    first = Live(engine)
    first.append(TOKENS)
    lost = [first.blocks[3], *engine.residency.shelf.entries[first.blocks[5]].node.kv]
    engine.store.delete_many(lost)
    second = Live(engine)
    second.append(TOKENS)
    assert [each.verdict for each in second.counts.executed] == [Verdict.HIT] * 12
    assert engine.store.missing(lost) == []
    assert engine.residency.log.blocks[L0, L2] == 2
    assert resume(tiny_engine(), checkpoint(second, title="", created="")).counts.misses == []


def test_what_was_dropped_is_computed_again_under_its_name(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    live = Live(engine)
    live.append(TOKENS[:64])
    entry = engine.residency.shelf.entries[live.blocks[1]]
    assert not entry.regenerated
    engine.residency.note("gc")
    assert not engine.residency.shelf.is_reproducible(entry)  # unknown counts as lost
    engine.index.remove_blocks(live.blocks)
    again = Live(engine)
    again.append(TOKENS[:64])
    assert again.blocks == live.blocks
    assert entry.regenerated
    assert engine.residency.shelf.is_reproducible(entry)


@pytest.mark.parametrize("budget_blocks", [0, 3, 12, None])
def test_a_budget_in_bytes_is_kept(budget_blocks: int | None, tiny_engine: Engines) -> None:
    engine = tiny_engine()
    recorded = Live(engine)
    recorded.append(TOKENS)
    engine.residency.reset()
    before = engine.residency.log.read_bytes(L2)
    live = Live(engine)
    budget_bytes = None if budget_blocks is None else budget_blocks * engine.geometry.block_bytes
    live.append(TOKENS, budget_bytes=budget_bytes)
    loaded = 12 if budget_blocks is None else budget_blocks
    assert [each.verdict for each in live.counts.executed] == (
        [Verdict.FAULT] * loaded + [Verdict.ABSTAIN] * (12 - loaded)
    )
    assert engine.residency.log.read_bytes(L2) - before == loaded * engine.geometry.block_bytes
    assert live.counts.tokens_reused == 16 * loaded
    assert [miss.position_start for miss in live.counts.misses] == ([16 * loaded] if loaded < 12 else [])
    assert live.blocks == recorded.blocks
    assert torch.equal(live.next_logits(), recorded.next_logits())


def test_a_budget_covers_what_is_loaded_first_and_the_rest_together(tiny_engine: Engines) -> None:
    engine, seconds = tiny_engine(), count()
    Live(engine).append(TOKENS)
    engine.residency.reset()
    engine.pace = Pace(lambda: float(next(seconds)), 1e-6, probe_bytes=3 * engine.geometry.block_bytes)
    live = Live(engine)
    live.append(TOKENS, budget_bytes=5 * engine.geometry.block_bytes)
    assert [each.verdict for each in live.counts.executed] == [Verdict.FAULT] * 5 + [Verdict.ABSTAIN] * 7


def test_only_what_was_stored_counts_as_done(tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cyberkv.runtime.appending.CHUNK_TOKENS", 64)
    live = Live(tiny_engine())

    def stop(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        live.append(TOKENS, stop)
    assert (len(live.counts.executed), live.counts.tokens_computed) == (4, 64)
    live.append(TOKENS[64:])
    assert (len(live.counts.executed), live.counts.tokens_computed) == (12, 200)
    assert {each.verdict for each in live.counts.executed} == {Verdict.RECOMPUTE}


def done(verdicts: list[BlockVerdict]) -> list[object]:
    """What of a plan can be compared with what was done: all but the estimates, which need speeds."""
    return [(each.index, each.verdict, each.tier, each.cid, each.load_bytes, each.difference) for each in verdicts]


def test_a_plan_is_executed_as_it_stands(tiny_engine: Engines) -> None:
    """Blocks in the pool, in host memory, in the store, given up, and never seen: one text has them all."""
    engine = tiny_engine()
    engine.host_bytes = 4 * engine.geometry.block_bytes
    recorded = Live(engine)
    recorded.append(TOKENS[:160])
    blocks = list(recorded.blocks)
    evict(recorded, [Cut(128, 160)], "rollback")
    recorded.close()
    while engine.residency.tier_of(blocks[4]) is L0:
        assert engine.residency.shelf.evict()
    engine.residency.shelf.forget(blocks[7])
    engine.residency.shelf.forget(blocks[6])
    live = Live(engine)
    planned = live.plan(TOKENS)
    moved = engine.residency.log.blocks.copy()
    assert [each.verdict for each in planned] == (
        [Verdict.HIT] * 4 + [Verdict.FAULT] * 4 + [Verdict.REFUSE] * 2 + [Verdict.RECOMPUTE] * 2
    )
    assert [each.tier for each in planned[:8]] == [L0, L0, L0, L0, L1, L1, L2, L2]
    assert engine.residency.log.blocks == moved  # to plan moves nothing
    live.append(TOKENS)
    assert done(live.counts.executed) == done(planned)
    assert live.counts.tokens_reused == 8 * 16
    assert live.counts.tokens_computed == len(TOKENS) - 8 * 16
    again = Live(engine)
    again.append(TOKENS)
    assert {each.verdict for each in again.counts.executed} == {Verdict.HIT}  # computed since: filed again
    assert again.blocks[:10] == blocks


def test_a_root_is_taken_by_plan(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    recorded = Live(engine)
    recorded.append(TOKENS)
    root = checkpoint(recorded, title="", created="")
    engine.residency.reset()
    engine.residency.ensure(recorded.blocks[:5]).close()
    planned = Live(engine).plan_recorded(recorded.blocks)
    assert [each.verdict for each in planned] == [Verdict.HIT] * 5 + [Verdict.FAULT] * 7
    assert done(resume(engine, root).counts.executed) == done(planned)
    engine.residency.reset()
    leaf = Block.decode(engine.store.get(recorded.blocks[8])).kv[0]
    engine.store.delete_many([leaf])
    engine.index.remove_blocks(recorded.blocks[8:])  # so that nothing but the root names them
    live = resume(engine, root)
    assert [each.verdict for each in live.counts.executed] == [Verdict.FAULT] * 8 + [Verdict.RECOMPUTE] * 4
    assert str(leaf) in live.counts.executed[8].reason
    assert live.counts.executed[8].cid == leaf
    assert (live.counts.tokens_reused, live.counts.tokens_computed) == (8 * 16 + 8, 4 * 16)
    assert live.blocks == recorded.blocks


def test_what_is_approximate_is_reconciled_and_never_a_hit(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    live = Live(engine)
    live.append(TOKENS)
    evict(live, [Cut(40, 60)], "fast")
    root = checkpoint(live, title="", created="")
    engine.residency.reset()
    for verdict in (Verdict.FAULT, Verdict.HIT):  # from the store, and then from the rows of the first
        fresh = Live(engine, approx=live.approx)
        planned = fresh.plan_recorded(live.blocks)
        again = resume(engine, root)
        assert [each.verdict for each in again.counts.executed] == [verdict] * 2 + [Verdict.RECONCILED] * 9
        assert done(again.counts.executed) == done(planned)
        near = again.counts.executed[2]
        assert (near.reason, near.error, near.difference) == (live.approx, None, ("approx", None, live.approx))
        assert again.counts.tokens_reused == len(live.tokens)
    assert torch.equal(again.next_logits(), live.next_logits())
    exact = Live(engine)
    exact.append(TOKENS)
    repeated = resume(engine, checkpoint(exact, title="", created=""))  # the control
    assert {each.verdict for each in repeated.counts.executed} <= {Verdict.HIT, Verdict.FAULT}


WORK = st.lists(
    st.tuples(st.sampled_from(["append", "known", "decode", "resume", "evict", "reset", "lose"]), st.integers(1, 60)),
    min_size=1, max_size=8,
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(work=WORK, budget=st.sampled_from([None, 1, 100]))
def test_counters_are_the_sums_of_what_was_done(
    work: list[tuple[str, int]], budget: int | None, shared_engine: Engine
) -> None:
    engine, size = shared_engine, 16
    used_blocks = engine.pool.used_blocks
    live, reused, computed = Live(engine), 0, 0
    for operation, amount in work:
        if operation in ("append", "known"):
            seen, carried, read_bytes = len(live.counts.executed), len(live.tail), engine.residency.log.read_bytes(L2)
            tokens = TOKENS[:amount] if operation == "append" else TOKENS[len(live.tokens) : len(live.tokens) + amount]
            live.append(tokens, budget_bytes=budget and budget * engine.geometry.block_bytes)
            asked = live.counts.executed[seen:]
            moved_bytes = engine.residency.log.read_bytes(L2) - read_bytes
            assert moved_bytes == sum(each.load_bytes for each in asked if each.verdict.loads)
            assert len(asked) == ((carried + len(tokens)) // size if tokens else 0)
            took_over = bool(asked) and asked[0].verdict.loads  # the old tail was counted when it came
            new_tail = carried + len(tokens) - size * len(asked)
            loads = sum(each.verdict.loads for each in asked)
            reused += size * loads - carried * took_over
            computed += size * (len(asked) - loads) + new_tail - carried * (not took_over)
        elif operation == "decode":
            for token in TOKENS[:amount][:20]:
                live.decode(token)
                computed += 1
        elif operation == "resume":
            root = checkpoint(live, title="t", created="")
            live.close()
            live = resume(engine, root)
            reused = size * sum(each.verdict.loads for each in live.counts.executed) + len(live.tail)
            computed = 0
        elif operation == "evict":
            engine.residency.shelf.evict()
        elif operation == "reset":
            engine.residency.reset()
        elif live.blocks:
            engine.store.delete_many([live.blocks[amount % len(live.blocks)]])
            live.close()
            live, reused, computed = Live(engine), 0, 0
        counts = live.counts
        assert (counts.tokens_reused, counts.tokens_computed) == (reused, computed)
        for each in counts.executed:
            assert bool(each.reason) == (each.verdict is not Verdict.HIT)
        assert engine.residency.check_integrity() == []
    live.close()
    assert engine.pool.used_blocks == used_blocks
    engine.residency.reset()
