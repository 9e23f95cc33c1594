"""Live conversations: whatever way a state is reached, what follows is the same, bit for bit."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from cyberkv.cybergraph import chain
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import IdentityMismatch, OutOfRange, TierFull
from cyberkv.cybergraph.keeping.fsck import fsck
from cyberkv.runtime.canonical import CHUNK_TOKENS
from cyberkv.runtime.checkpoint import checkpoint, resume
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.pool import Pool
from cyberkv.runtime.sampling import Sampling

SIZE = 16
TOKENS = [(13 * i * i + 11 * i + 5) % 250 for i in range(1200)]
Engines = Callable[..., Engine]


def started(engine: Engine, tokens: list[int]) -> Live:
    live = Live(engine)
    live.append(tokens)
    return live


def record(live: Live) -> Cid:
    return checkpoint(live, title="test", created="2026-01-01T00:00:00Z")


def without_tail_rows(engine: Engine, root_cid: Cid) -> Cid:
    root = chain.load_root(engine.store, root_cid)
    return engine.store.put_node(replace(root, tail=replace(root.tail, kv=None, domain=None)))


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(cut, marks=[pytest.mark.slow] * (cut > SIZE + 1 and cut not in (23, 31, 32, 33, 40, 47, 48)))
        for cut in range(1, 3 * SIZE + 1)
    ],
)
def test_resume_at_every_cut_equals_the_uninterrupted_run(cut: int, tiny_engine: Engines) -> None:
    """By default every cut of a block, and around the ends of others."""
    engine = tiny_engine()
    live = started(engine, TOKENS[:cut])
    root = record(live)
    expected = live.next_logits()
    by_rows, by_replay = resume(engine, root), resume(engine, without_tail_rows(engine, root))
    assert torch.equal(by_rows.next_logits(), expected)
    assert torch.equal(by_replay.next_logits(), expected)
    assert by_rows.counts.tokens_reused == cut
    assert by_replay.counts.tokens_reused == cut // SIZE * SIZE
    assert by_replay.counts.tokens_computed == cut % SIZE

    control = started(engine, [*TOKENS[: cut - 1], TOKENS[cut - 1] + 1])
    assert not torch.equal(control.next_logits(), expected)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "smollm3-window"])
def test_generation_goes_on_after_a_resume_as_if_never_stopped(family: str, tiny_engine: Engines) -> None:
    """Each time until the next block is full; at every kind of place in one family, within a block in the others."""
    engine = tiny_engine(family)
    sampling = Sampling(temperature=20.0, seed=7)
    whole = started(engine, TOKENS[:20])
    expected = list(whole.generate(45, sampling))

    part, first, root = started(engine, TOKENS[:20]), list[int](), None
    for steps in (1, 11, 12, 13, 28, 40) if family == "llama" else (11, 23):
        first += part.generate(steps - len(first), sampling)
        root = record(part)
        left = SIZE - (20 + steps) % SIZE + 1
        for again in (resume(engine, root), resume(engine, without_tail_rows(engine, root))):
            assert torch.equal(again.next_logits(), part.next_logits()), steps
            assert first + list(again.generate(left, sampling)) == expected[: steps + left], steps
            assert len(again.blocks) == len(part.blocks) + 1
            assert again.blocks == whole.blocks[: len(again.blocks)], steps
    assert root is not None
    other = resume(engine, root)
    assert first + list(other.generate(4, replace(sampling, seed=8))) != expected[: len(first) + 4]


def test_decoded_blocks_have_the_cids_of_prefilled_ones(tiny_engine: Engines) -> None:
    decoded = started(tiny_engine(home="one"), TOKENS[:5])
    for token in TOKENS[5:100]:
        decoded.decode(token)
    prefilled = started(tiny_engine(home="two"), TOKENS[:100])
    assert decoded.blocks == prefilled.blocks
    assert len(decoded.blocks) == 100 // SIZE
    assert decoded.tail == prefilled.tail


@pytest.mark.parametrize("block_size", [8, 16, 32, 64])
def test_every_block_size_resumes_and_matches(block_size: int, tiny_engine: Engines) -> None:
    engine = tiny_engine(block_size=block_size)
    live = started(engine, TOKENS[:300])
    list(live.generate(30, Sampling()))
    again = resume(engine, record(live))
    assert torch.equal(again.next_logits(), live.next_logits())
    fresh = started(tiny_engine(block_size=block_size, home="fresh"), live.tokens)
    assert fresh.blocks == live.blocks
    assert fresh.counts.tokens_reused == 0


@pytest.mark.parametrize("shared", [0, 1, 15, 16, 17, 47, 48, 330])
def test_a_second_conversation_computes_only_its_own_suffix(shared: int, tiny_engine: Engines) -> None:
    engine = tiny_engine()
    started(engine, TOKENS[:400]).close()
    changed = [(token + 1) % 250 for token in TOKENS[shared : shared + 40]]
    second = started(engine, TOKENS[:shared] + changed)
    assert second.counts.tokens_reused == shared // SIZE * SIZE
    assert second.counts.tokens_computed == shared + 40 - shared // SIZE * SIZE
    cold = started(tiny_engine(home="cold"), TOKENS[:shared] + changed)
    assert torch.equal(second.next_logits(), cold.next_logits())
    assert second.blocks == cold.blocks


def test_a_continuation_reuses_what_another_one_computed(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    root = record(started(engine, TOKENS[:40]))
    first, second = resume(engine, root), resume(engine, root)
    first.append(TOKENS[40:140])
    reused_before = second.counts.tokens_reused
    second.append(TOKENS[40:140])
    assert second.counts.tokens_reused - reused_before == 140 // SIZE * SIZE - 40
    assert second.counts.tokens_computed == 140 % SIZE
    assert torch.equal(first.next_logits(), second.next_logits())


@pytest.mark.parametrize("changed_at", range(0, 64, 5))
def test_changing_a_token_costs_everything_after_it(changed_at: int, tiny_engine: Engines) -> None:
    engine = tiny_engine()
    started(engine, TOKENS[:64])
    edited = started(engine, [*TOKENS[:changed_at], (TOKENS[changed_at] + 1) % 250, *TOKENS[changed_at + 1 : 64]])
    assert edited.counts.tokens_reused == changed_at // SIZE * SIZE


def test_agents_that_share_a_prefix_add_only_their_own_blocks(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    before = len(list(engine.store.cids()))
    agents = []
    for agent in range(5):
        own = [(agent * 50 + i) % 250 for i in range(40)]
        agents.append(started(engine, TOKENS[:160] + own))
        assert agents[-1].counts.blocks_new == (12 if agent == 0 else 2)
    leaves_per_block = engine.geometry.leaves_per_block
    assert len(list(engine.store.cids())) - before == (10 + 5 * 2) * (leaves_per_block + 1)


def test_append_after_a_decoded_tail_is_canonical_from_the_block_boundary(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    live = started(engine, TOKENS[:20])
    for token in TOKENS[20:30]:
        live.decode(token)
    live.append(TOKENS[30:50])
    fresh = started(tiny_engine(home="fresh"), TOKENS[:50])
    assert torch.equal(live.next_logits(), fresh.next_logits())
    assert live.blocks == fresh.blocks
    assert live.counts.tokens_computed == 50


@pytest.mark.parametrize("at", [0, 1, 16, 31, 32, 70, 75])
def test_fork_shares_every_full_block_before_the_cut(at: int, tiny_engine: Engines) -> None:
    engine = tiny_engine()
    live = started(engine, TOKENS[:70])
    for token in TOKENS[70:75]:
        live.decode(token)
    rows_before = engine.pool.rows[torch.tensor(live.sequence.table)].clone()
    child = live.fork(at)
    assert child.blocks == live.blocks[: at // SIZE]
    assert child.sequence.table[: at // SIZE] == live.sequence.table[: at // SIZE]
    if at:
        child.append([3, 1, 4])
        straight = started(tiny_engine(home="straight"), [*TOKENS[:at], 3, 1, 4])
        assert torch.equal(child.next_logits(), straight.next_logits())
    assert torch.equal(engine.pool.rows[torch.tensor(live.sequence.table)], rows_before)
    child.close()
    live.close()
    assert engine.pool.used_blocks == 0


def test_a_damaged_leaf_is_one_miss_and_heals(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    live = started(engine, TOKENS[:100])
    root, expected = record(live), live.next_logits()
    control = started(engine, TOKENS[300:340]).next_logits()
    bad = chain.load_root(engine.store, root)
    step = list(chain.walk(engine.store, bad))[3]
    engine.store.delete_many([step.block.kv[0]])

    engine.residency.reset()  # as in another process: what is in the pool needs no leaf
    again = resume(engine, root)
    assert [miss.position_start for miss in again.counts.misses] == [48]
    assert again.counts.tokens_reused == 48 + 100 % SIZE
    assert torch.equal(again.next_logits(), expected)
    assert again.blocks == live.blocks
    healed = resume(engine, root)
    assert healed.counts.misses == []
    assert torch.equal(started(engine, TOKENS[300:340]).next_logits(), control)
    assert list(fsck(engine.store, engine.index)) == []


def test_a_missing_tail_leaf_is_replayed(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    live = started(engine, TOKENS[:40])
    list(live.generate(3, Sampling()))
    root = record(live)
    engine.store.delete_many(chain.load_root(engine.store, root).tail.kv or ())
    again = resume(engine, root)
    assert len(again.counts.misses) == 1
    assert torch.equal(again.next_logits(), live.next_logits())


def test_blocks_of_another_domain_are_adopted_and_own_ones_preferred(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    theirs = started(engine, TOKENS[:64])
    engine.domain = replace(engine.domain, name="f32-another-machine")
    adopted = started(engine, TOKENS[:64])
    assert adopted.counts.tokens_reused == 64
    assert adopted.blocks == theirs.blocks
    resumed = resume(engine, record(started(engine, TOKENS[:70])))
    assert resumed.counts.tokens_reused == 70


def test_a_divergence_is_recorded(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    first = started(engine, TOKENS[:32])
    assert engine.index.divergences() == []
    root = chain.load_root(engine.store, record(first))
    engine.store.delete_many([leaf for step in chain.walk(engine.store, root) for leaf in step.block.kv])
    engine.residency.reset()
    layer = engine.decoder.layers[1]
    sound = layer.qkv
    layer.qkv = lambda *parts: 1.0001 * sound(*parts)  # an arithmetic that is off, under the same domain
    second = started(engine, TOKENS[:32])
    layer.qkv = sound
    assert second.counts.tokens_reused == 0
    assert second.blocks[0] != first.blocks[0]
    recorded = engine.index.divergences()
    assert [set(divergence.blocks) for divergence in recorded] == [{first.blocks[0], second.blocks[0]}]


def test_resume_refuses_another_model_and_names_the_axis(tiny_engine: Engines) -> None:
    root = record(started(tiny_engine("llama"), TOKENS[:40]))
    other = tiny_engine("qwen3")
    with pytest.raises(IdentityMismatch) as caught:
        resume(other, root)
    assert caught.value.data["field"]
    assert caught.value.data["expected"] != caught.value.data["got"]


def test_an_interrupted_append_keeps_whole_chunks(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    live = Live(engine)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        live.append(TOKENS[: CHUNK_TOKENS + 88], stop)
    assert live.tokens == TOKENS[:CHUNK_TOKENS]
    assert len(live.blocks) == CHUNK_TOKENS // 16
    again = resume(engine, record(live))
    assert torch.equal(again.next_logits(), live.next_logits())
    assert list(fsck(engine.store, engine.index)) == []


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_a_failed_write_leaves_what_is_stored(
    fails_at: int, tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine()
    calls, put_many = 0, engine.store.put_many

    def full(blocks: Any, *, hashed: bool = False) -> int:
        nonlocal calls
        calls += 1
        if calls >= fails_at:
            raise TierFull("no space left")
        return put_many(blocks, hashed=hashed)

    live = Live(engine)
    monkeypatch.setattr(engine.store, "put_many", full)
    monkeypatch.setattr("cyberkv.runtime.appending.CHUNK_TOKENS", 64)
    with pytest.raises(TierFull):
        live.append(TOKENS[:200])
    monkeypatch.undo()
    assert len(live.tokens) == 64 * (fails_at - 1)
    assert engine.store.missing(live.blocks) == []
    assert live.counts.tokens_computed == len(live.tokens)
    assert live.counts.blocks_new == len(live.blocks)
    live.append(TOKENS[len(live.tokens) : 200])
    assert torch.equal(live.next_logits(), started(tiny_engine(home="other"), TOKENS[:200]).next_logits())
    assert list(fsck(engine.store, engine.index)) == []


@pytest.mark.parametrize("fails_in", ["forward", "store"])
def test_a_swap_that_fails_changes_nothing(
    fails_in: str, tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine()
    live = started(engine, TOKENS[:20])
    for token in TOKENS[20:31]:
        live.decode(token)
    before = (list(live.tokens), list(live.blocks), live.prefilled, replace(live.counts), live.next_logits().clone())
    used = engine.pool.used_blocks
    if fails_in == "store":
        monkeypatch.setattr(engine.store, "put_many", lambda *_, **__: (_ for _ in ()).throw(TierFull("no space left")))
        error: type[BaseException] = TierFull
    else:  # Ctrl-C in the last layer, when the rows of the others are written
        attend, last = live.sequence.attend, engine.config.num_layers - 1

        def interrupted(layer: int, *rest: Any) -> torch.Tensor:
            if layer == last:
                raise KeyboardInterrupt
            return attend(layer, *rest)

        monkeypatch.setattr(live.sequence, "attend", interrupted)
        error = KeyboardInterrupt
    with pytest.raises(error):
        live.decode(TOKENS[31])
    monkeypatch.undo()
    assert (live.tokens, live.blocks, live.prefilled, live.counts) == before[:4]
    assert torch.equal(live.next_logits(), before[4])
    assert engine.pool.used_blocks == used
    by_rows = resume(engine, record(live))
    by_replay = resume(engine, without_tail_rows(engine, record(live)))
    assert torch.equal(by_rows.next_logits(), before[4])
    assert torch.equal(by_replay.next_logits(), before[4])
    live.decode(TOKENS[31])
    assert live.blocks == started(tiny_engine(home="straight"), TOKENS[:32]).blocks
    assert list(fsck(engine.store, engine.index)) == []


def test_what_follows_from_approximate_bytes_is_never_found(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    live = started(engine, TOKENS[:40])
    root = chain.load_root(engine.store, record(live))
    approximate = engine.store.put_node(replace(root, approx="spliced"))
    again = resume(engine, approximate)
    again.append(TOKENS[40:100])
    list(again.fork(90).generate(10, Sampling()))
    after = chain.load_root(engine.store, record(again))
    assert after.approx == "spliced"
    assert [engine.index.domain_of(cid) for cid in again.blocks[2:]] == [None] * 4
    assert started(engine, TOKENS[:100]).counts.tokens_reused == 32


def test_every_position_of_the_model_can_be_used(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    most = engine.config.max_positions
    live = started(engine, [TOKENS[i % 600] for i in range(most - 3)])
    assert len(list(live.generate(10, Sampling()))) == 3
    assert len(live.tokens) == most
    with pytest.raises(OutOfRange, match="used up"):
        live.decode(1)


def test_rows_of_a_tail_from_another_thread_count_are_computed_again(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    live = started(engine, TOKENS[:20])
    list(live.generate(3, Sampling()))
    root = record(live)
    engine.domain = replace(engine.domain, rows=engine.domain.rows + "-other")
    again = resume(engine, root)
    assert again.counts.tokens_reused == 16
    assert again.counts.tokens_computed == 7


def test_limits_are_named(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    with pytest.raises(OutOfRange, match="positions"):
        started(engine, [1] * (engine.config.max_positions + 1))
    with pytest.raises(OutOfRange, match="cannot fork"):
        started(engine, TOKENS[:10]).fork(11)
    with pytest.raises(OutOfRange, match="empty conversation"):
        Live(engine).next_logits()
    engine.pool = Pool(engine.geometry, 2)
    with pytest.raises(TierFull, match="pool rows"):
        started(engine, TOKENS[400:450])


def test_sampling_is_greedy_at_zero_and_repeats_by_seed_and_position() -> None:
    logits = torch.tensor([0.1, 2.0, 1.9, -3.0])
    assert Sampling().choose(logits, 5) == 1
    hot = Sampling(temperature=1.0, seed=3)
    draws = [hot.choose(logits, position) for position in range(200)]
    assert draws == [hot.choose(logits, position) for position in range(200)]
    assert draws != [Sampling(temperature=1.0, seed=4).choose(logits, position) for position in range(200)]
    assert {1, 2} <= set(draws)
    share = draws.count(1) / draws.count(2)
    assert 0.6 < share < 2.0
