"""Edits that are refused, stopped half-way or undone, and what they leave alone: forks, other conversations, pages."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from cyberkv.cybergraph import chain
from cyberkv.cybergraph.errors import CyberKVError, TierFull, UnsafeNumerics, UnsupportedModel
from cyberkv.cybergraph.keeping.fsck import fsck
from cyberkv.runtime.checkpoint import resume
from cyberkv.runtime.edits.derived import derived, descendants
from cyberkv.runtime.edits.evict import drop_branch, evict
from cyberkv.runtime.edits.receipt import Cut, Mode
from cyberkv.runtime.edits.refusal import can_evict, refusal
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.pool import Pool
from tests.numerics.edited import (
    TOKENS,
    Engines,
    alike,
    hot,
    load_layers,
    record,
    rows,
    same,
    started,
    two_engines,
    without,
)
from tests.numerics.test_decoder import CANONICAL_BOUND


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Engine]]:
    yield from two_engines(load_layers(4, tmp_path_factory), tmp_path_factory)


# Asked before, refused as asked


@settings(max_examples=80)
@given(
    start=st.integers(-3, 45), end=st.integers(-3, 45), mode=st.sampled_from(["exact", "rollback", "branch", "fast"])
)
def test_asking_first_gives_the_answer_of_the_attempt(
    start: int, end: int, mode: Mode, pair: tuple[Engine, Engine]
) -> None:
    live = started(pair[0], TOKENS[:40])
    cuts, before = [Cut(start, end)], (list(live.tokens), list(live.blocks), rows(live))
    answer = refusal(live, cuts, mode)
    assert can_evict(live, cuts, mode) == (answer is None)
    if answer is None:
        evict(live, cuts, mode)
    else:
        with pytest.raises(CyberKVError) as caught:
            evict(live, cuts, mode)
        error = caught.value
        assert (type(error), error.message, error.data) == (type(answer), answer.message, answer.data)
        assert (live.tokens, live.blocks) == before[:2]
        assert torch.equal(rows(live), before[2])
    live.close()


def test_layers_without_rows_are_refused_by_name(pair: tuple[Engine, Engine]) -> None:
    engine = pair[0]
    live, known = started(engine, TOKENS[:40]), engine.model
    before = rows(live)
    engine.model = replace(known, attention=("full", "recurrent", "full", "window:8-nope"))
    try:
        for mode in ("exact", "rollback", "fast"):
            assert not can_evict(live, [Cut(30, 40)], mode)
            with pytest.raises(UnsupportedModel, match=r"layer 1 \(recurrent\)") as caught:
                evict(live, [Cut(30, 40)], mode)
            assert caught.value.data["layers"] == [1]
    finally:
        engine.model = known
    assert torch.equal(rows(live), before)
    assert can_evict(live, [Cut(30, 40)], "rollback")  # the control
    live.close()


def test_where_the_rule_is_broken_nothing_is_computed(pair: tuple[Engine, Engine]) -> None:
    engine = pair[0]
    live, sound = started(engine, TOKENS[:40]), engine.domain
    engine.domain = replace(sound, broken="a test says so")
    try:
        with pytest.raises(UnsafeNumerics):
            evict(live, [Cut(3, 9)])
        evict(live, [Cut(30, 40)], "rollback")  # computes nothing
    finally:
        engine.domain = sound
    assert len(live.tokens) == 30
    live.close()


# Before or after, never between


class Fault:
    """Raises at one of the steps that an edit takes, before or after the step is done."""

    def __init__(self, at: int, error: type[BaseException], *, after: bool) -> None:
        self.left = at
        self.error = error
        self.after = after

    def around(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left == 0 and not self.after:
                raise self.error("a test stops here")
            done = work(*args, **kwargs)
            if self.left == 0 and self.after:
                raise self.error("a test stops here")
            return done

        return step


STEPS = [
    "pool.allocate", "store.put_many", "index.add_blocks", "index.remove_blocks", "index.next_block", "decoder.forward",
    "memory.take",
]  # fmt: skip


@pytest.mark.parametrize("error", [KeyboardInterrupt, TierFull])
@pytest.mark.parametrize(
    ("mode", "cut"), [("exact", Cut(20, 53)), ("fast", Cut(20, 53)), ("rollback", Cut(37, 70))], ids=str
)
def test_a_fault_at_any_step_leaves_the_state_before_or_after(
    mode: Mode, cut: Cut, error: type[BaseException], tiny_engine: Engines
) -> None:
    engine = tiny_engine()
    expected = started(tiny_engine(home="expected"), TOKENS[:70])
    evict(expected, [cut], mode)
    ends = set()
    for after in (False, True):
        for at in range(1, 60):
            engine.index.rebuild(engine.store)
            live = started(engine, TOKENS[:70])
            before = (list(live.tokens), list(live.blocks), live.approx, rows(live), hot(live), live.next_logits())
            used = engine.pool.used_blocks
            fault = Fault(at, error, after=after)
            with pytest.MonkeyPatch.context() as patch:
                for step in STEPS:
                    part, name = step.split(".")
                    owner = getattr(engine, part)
                    patch.setattr(owner, name, fault.around(getattr(owner, name)))
                try:
                    evict(live, [cut], mode)
                except error:
                    pass
                else:
                    assert fault.left > 0
            if live.tokens == before[0]:
                ends.add("before")
                assert (live.blocks, live.approx) == before[1:3]
                assert torch.equal(rows(live), before[3])
                assert alike(hot(live), before[4])
                assert torch.equal(live.next_logits(), before[5])
                # A step that is stopped after it took a row, and before it could say which, keeps that row.
                assert engine.pool.used_blocks - used <= (1 if after else 0)
            else:
                ends.add("after")
                assert same(live, expected)
            kept = engine.pool.used_blocks - len(live.sequence.table)
            live.close()
            assert engine.pool.used_blocks == kept <= (used if after else 0)
            if fault.left > 0:
                break
        assert fault.left > 0  # every step had its turn
    assert ends == {"before", "after"}
    assert list(fsck(engine.store, engine.index)) == []


def test_a_pool_without_room_leaves_the_conversation(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    engine.pool = Pool(engine.geometry, 6)
    live = started(engine, TOKENS[:90])
    for mode, cut in (("exact", Cut(3, 9)), ("fast", Cut(3, 9)), ("rollback", Cut(70, 90))):
        with pytest.raises(TierFull):
            evict(live, [cut], mode)
        assert live.tokens == TOKENS[:90]
        assert engine.pool.used_blocks == 6
    evict(live, [Cut(80, 90)], "rollback")  # at the end of a block there is no rest to copy
    live.close()
    assert engine.pool.used_blocks == 0


def test_ctrl_c_between_chunks_leaves_the_conversation(tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine()
    live = started(engine, TOKENS[:200])
    monkeypatch.setattr("cyberkv.runtime.appending.CHUNK_TOKENS", 32)
    expected = live.next_logits()

    def stop(done: int, total: int) -> None:
        if done > 64:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evict(live, [Cut(10, 20)], progress=stop)
    assert live.tokens == TOKENS[:200]
    assert torch.equal(live.next_logits(), expected)
    live.close()
    assert engine.pool.used_blocks == 0


# What others share stays as it is


def test_an_edit_of_a_fork_leaves_the_parent(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    for mode, cut in (("exact", Cut(20, 40)), ("fast", Cut(20, 40)), ("rollback", Cut(40, 90))):
        parent = started(engine, TOKENS[:90])
        raw, warm, logits = rows(parent), hot(parent), parent.next_logits()
        child = parent.fork(90)
        evict(child, [cut], mode)
        child.append(TOKENS[300:340])
        for token in TOKENS[340:350]:
            child.decode(token)
        assert torch.equal(rows(parent), raw)
        assert alike(hot(parent), warm)
        assert torch.equal(parent.next_logits(), logits)
        assert not torch.equal(child.next_logits(), logits)  # the control
        child.close()
        parent.close()
        assert engine.pool.used_blocks == 0


def test_index_entries_of_what_follows_go_and_no_others(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    index, model = engine.index, engine.model_cid
    live = started(engine, TOKENS[:96])
    sibling = started(engine, TOKENS[:32] + TOKENS[100:148])
    cousin = started(engine, TOKENS[:48] + TOKENS[200:248])  # holds the span, in another conversation
    reads = index.reads
    wanted = {*live.blocks[2:], *cousin.blocks[3:]}
    assert {*derived(index, model, live.blocks[2:])} == wanted
    assert index.reads == reads
    assert descendants(index, model, []) == []
    assert len(descendants(index, model, [live.blocks[2]] * 3)) == len(wanted)
    receipt = evict(live, [Cut(40, 44)])
    assert receipt.invalidated == len(wanted)
    assert all(index.domain_of(cid) is None for cid in wanted)
    assert all(index.domain_of(cid) is not None for cid in {*sibling.blocks, *live.blocks})
    assert evict(live, [Cut(90, 92)]).invalidated == 0  # in the tail: no block held it
    assert resume(engine, record(cousin)).blocks == cousin.blocks  # roots have their blocks still
    assert list(fsck(engine.store, engine.index)) == []


@pytest.mark.parametrize("mode", ["exact", "fast", "rollback", "branch"])
def test_what_the_head_of_another_name_holds_stays_found(mode: Mode, tiny_engine: Engines) -> None:
    engine = tiny_engine()
    index = engine.index
    live, cousin = started(engine, TOKENS[:96]), started(engine, TOKENS[:64] + TOKENS[200:232])
    before = list(live.blocks)
    for name, each in (("live", live), ("cousin", cousin)):
        index.set_head(name, record(each), "")
    if mode == "branch":
        trunk = live.fork(40)
        receipt = drop_branch(trunk, live, 40, name="live")
    else:
        receipt = evict(live, [Cut(40, 96 if mode == "rollback" else 44)], mode, name="live")
    assert receipt.invalidated == 2
    assert [index.domain_of(cid) is None for cid in before] == [False] * 4 + [True] * 2
    assert all(index.domain_of(cid) is not None for cid in cousin.blocks)
    index.drop("live")
    assert evict(cousin, [Cut(40, 44)], name="cousin").invalidated == 4  # the control: nobody else's head
    assert list(fsck(engine.store, index)) == []


def test_what_repeats_itself_keeps_its_own_blocks(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    live = started(engine, TOKENS[:16] * 4)
    blocks = list(live.blocks)
    receipt = evict(live, [Cut(0, 16)])
    assert live.blocks == blocks[:3]
    assert (receipt.recomputed_tokens, receipt.dropped_blocks, receipt.invalidated) == (0, 1, 1)
    assert engine.index.domain_of(blocks[0]) is not None


def test_a_shift_of_the_context_can_be_undone(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    live = started(engine, TOKENS[:200])
    root, logits = record(live), live.next_logits()
    evict(live, [Cut(32, 100)])  # old turns go; those after it stand at their true positions
    shifted = started(tiny_engine(home="fresh"), without(TOKENS[:200], Cut(32, 100)))
    assert same(live, shifted)
    undone = resume(engine, root)
    assert torch.equal(undone.next_logits(), logits)
    assert not torch.equal(shifted.next_logits(), logits)
    assert undone.counts.tokens_computed == 0


def test_another_implementation_agrees_on_what_is_left(tiny_engine: Engines, tiny: Callable[[str], Path]) -> None:
    live, cut = started(tiny_engine(), TOKENS[:120]), Cut(37, 71)
    evict(live, [cut])
    peer = AutoModelForCausalLM.from_pretrained(tiny("llama")).eval()

    def asked(tokens: list[int]) -> torch.Tensor:
        with torch.no_grad():
            scores: torch.Tensor = peer(torch.tensor([tokens])).logits[0, -1]
        return scores

    expected, got = asked(without(TOKENS[:120], cut)), live.next_logits()
    assert (got - expected).abs().max() <= CANONICAL_BOUND * expected.abs().max()
    assert got.argmax() == expected.argmax()
    assert (got - asked(TOKENS[:120])).abs().max() > 0.1  # the control: with the span


# Paged or contiguous, any block size, any window


@pytest.mark.parametrize(
    ("family", "block_size"),
    [
        ("llama", 8), ("llama", 64), ("mistral", 16), ("mistral", 32), ("qwen2-window", 32), ("qwen2-window", 64),
        ("smollm3-window", 8), ("smollm3-window", 16), pytest.param("glm", 32, marks=pytest.mark.slow),
        pytest.param("qwen3-yarn", 16, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_paging_changes_nothing(family: str, block_size: int, tiny_engine: Engines) -> None:
    engine = tiny_engine(family, block_size=block_size)
    plain = tiny_engine(family, block_size=block_size, home="plain")
    tokens, cut = TOKENS[:150], Cut(21, 83)
    order = engine.pool._free
    Random(7).shuffle(order)  # pages lie about
    live = started(engine, tokens)
    assert live.sequence.table != sorted(live.sequence.table)
    never = started(plain, without(tokens, cut))
    fast, fast_plain = live.fork(150), started(plain, tokens)
    evict(fast, [cut], "fast")
    evict(fast_plain, [cut], "fast")
    assert same(fast, fast_plain)
    assert not torch.equal(fast.next_logits(), never.next_logits())
    assert fast.blocks[cut.start // block_size :] != never.blocks[cut.start // block_size :] or not fast.blocks
    parent = live.fork(150)
    evict(live, [cut])
    assert same(live, never)
    assert same(parent, started(plain, tokens))  # what shared its pages kept them

    root = record(live)
    swapped = resume(tiny_engine(family, block_size=block_size), root)  # another pool: from the store
    assert same(swapped, never)
    assert swapped.counts.tokens_computed == 0
    leaves = [leaf for step in chain.walk(engine.store, chain.load_root(engine.store, root)) for leaf in step.block.kv]
    engine.store.delete_many(leaves)
    dropped = resume(tiny_engine(family, block_size=block_size), root)
    assert same(dropped, never)
    assert dropped.counts.tokens_computed >= len(live.blocks) * block_size
