"""Edits of a live conversation: what is exact is bit-equal to a run that never saw the span, and what is not says so.

Every test that finds two things equal has a control beside it: keeping the span gives something else.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cyberkv.cybergraph.errors import OutOfRange, Refused
from cyberkv.runtime.checkpoint import resume
from cyberkv.runtime.edits.evict import drop_branch, evict, open_branch
from cyberkv.runtime.edits.receipt import SURVIVES, Cut
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.models.registry import Registry
from cyberkv.runtime.pool import Pool
from cyberkv.runtime.sampling import Sampling
from tests.numerics.edited import (
    CUTS,
    SIZE,
    TOKENS,
    alike,
    compare,
    hot,
    load_layers,
    record,
    rows,
    same,
    started,
    two_engines,
    without,
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Engine]]:
    yield from two_engines(load_layers(4, tmp_path_factory), tmp_path_factory)


@pytest.fixture(scope="module")
def pair_of_one_layer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Engine]]:
    yield from two_engines(load_layers(1, tmp_path_factory), tmp_path_factory)


# T1: rollback


@pytest.mark.parametrize("at", [1, 15, 16, 17, 40, 48, 96, 99])
def test_a_rollback_is_the_run_that_never_went_on(at: int, pair: tuple[Engine, Engine]) -> None:
    compare(*pair, TOKENS[:100], [Cut(at, 100)], "rollback")


@pytest.mark.parametrize("at", [22, 28, 30, 33])
def test_a_rollback_into_decoded_tokens_is_where_the_run_was_then(at: int, pair: tuple[Engine, Engine]) -> None:
    live, never = started(pair[0], TOKENS[:20]), started(pair[1], TOKENS[:20])
    for token in TOKENS[20:37]:
        live.decode(token)
    for token in TOKENS[20:at]:
        never.decode(token)
    assert not torch.equal(live.next_logits(), never.next_logits())
    live.rollback(at)
    assert live.tokens == never.tokens
    # A filled block was computed again as a whole, so its rest is canonical, where the run that was cut off is not yet.
    if at // SIZE == 37 // SIZE or at % SIZE == 0:
        assert same(live, never)
    else:
        again = started(pair[1], TOKENS[:at])
        assert same(live, again)
        again.close()
    live.close()
    never.close()


@pytest.mark.parametrize("at", [0, 15, 16, 17, 40, 64, 70])
def test_a_rollback_is_a_fork_in_place(at: int, pair: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    live = started(pair[0], TOKENS[:70])
    fork = live.fork(at)
    other = live.fork(70)
    other.rollback(at)
    assert (other.tokens, other.blocks, other.prefilled) == (fork.tokens, fork.blocks, fork.prefilled)
    assert (other.tokens == live.tokens) is (at == 70)  # the control
    if at:
        assert same(other, fork)
    # One mechanism: what either keeps is decided in one place.
    monkeypatch.setattr(type(live), "_beginning", lambda _self, _at: 1 / 0)
    for back in (live.fork, live.rollback):
        with pytest.raises(ZeroDivisionError):
            back(at)
    for each in (live, fork, other):
        each.close()


# T2: branch


def test_what_a_branch_read_is_never_seen_by_the_trunk(pair: tuple[Engine, Engine]) -> None:
    one, two = pair
    live = started(one, TOKENS[:50])
    branch = open_branch(live)
    branch.append(TOKENS[200:260])
    live.append(TOKENS[50:90])
    receipt = drop_branch(live, branch, 50)
    never = started(two, TOKENS[:90])
    assert same(live, never)
    assert (receipt.mode, receipt.exact, receipt.recomputed_tokens) == ("branch", True, 0)
    assert (receipt.dropped_tokens, receipt.dropped_blocks, receipt.invalidated) == (60, 110 // SIZE - 50 // SIZE, 3)
    poisoned = started(two, TOKENS[:50] + TOKENS[200:260] + TOKENS[50:90])
    assert not torch.equal(poisoned.next_logits(), never.next_logits())
    for each in (live, never, poisoned):
        each.close()


def test_only_a_branch_is_dropped_as_one(pair: tuple[Engine, Engine]) -> None:
    live, other = started(pair[0], TOKENS[:50]), started(pair[0], TOKENS[1:60])
    with pytest.raises(OutOfRange, match="in common"):
        drop_branch(live, other, 50)
    with pytest.raises(Refused, match="not opened as a branch"):
        evict(live, [Cut(10, 20)], "branch")
    live.close()
    other.close()


# T3 and T4: exact


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_an_exact_eviction_is_the_run_that_never_saw_the_span(cut: Cut, pair: tuple[Engine, Engine]) -> None:
    compare(*pair, TOKENS[:100], [cut], "exact")


@settings(max_examples=25)
@given(data=st.data(), length=st.integers(2, 130))
def test_any_cuts_of_any_length(data: st.DataObject, length: int, pair: tuple[Engine, Engine]) -> None:
    edges = data.draw(st.lists(st.integers(0, length), min_size=2, max_size=6, unique=True).map(sorted))
    cuts = [Cut(*edges[at : at + 2]) for at in range(0, len(edges) - 1, 2)]
    if not without(TOKENS[:length], *cuts) or without(TOKENS[:length], *cuts) == TOKENS[:length]:
        return
    compare(*pair, TOKENS[:length], cuts, "exact")


def test_nothing_can_be_left(pair: tuple[Engine, Engine]) -> None:
    live = started(pair[0], TOKENS[:40])
    assert evict(live, [Cut(0, 40)]).dropped_blocks == 2
    assert (live.tokens, live.blocks, live.tail) == ([], [], [])
    live.append(TOKENS[:20])
    never = started(pair[1], TOKENS[:20])
    assert same(live, never)
    live.close()
    never.close()


def test_a_receipt_counts(pair: tuple[Engine, Engine]) -> None:
    live = started(pair[0], TOKENS[100:200])
    before = replace(live.counts, executed=list(live.counts.executed))
    receipt = evict(live, [Cut(20, 50)], elsewhere=["published as x"])
    assert receipt.mode == "exact"
    assert live.counts.tokens_computed == before.tokens_computed + receipt.recomputed_tokens
    assert live.counts.executed[: len(before.executed)] == before.executed
    assert len(live.counts.executed) == len(before.executed) + len(live.blocks) - 1  # one was kept, and not asked for
    assert (receipt.recomputed_tokens, receipt.dropped_tokens) == (4 + 50, 30)
    assert (receipt.dropped_blocks, receipt.invalidated) == (5, 5)
    assert (receipt.elsewhere, receipt.domain) == (("published as x",), pair[0].domain.name)
    assert "never saw" in receipt.note
    assert receipt.as_json()["exact"] is True
    assert type(receipt).decode(receipt.encode()) == receipt
    live.close()


# T5 and T6: fast


@pytest.mark.parametrize("cut", CUTS[:5], ids=str)
def test_a_fast_eviction_frees_rows_and_does_not_forget(cut: Cut, pair: tuple[Engine, Engine]) -> None:
    live, never = started(pair[0], TOKENS[:100]), started(pair[1], without(TOKENS[:100], cut))
    raw = rows(live)
    receipt = evict(live, [cut], "fast")
    assert (receipt.exact, receipt.recomputed_tokens, receipt.dropped_tokens) == (False, 0, cut.end - cut.start)
    assert receipt.note == SURVIVES
    assert "deeper layers" in (live.approx or "")
    assert live.tokens == never.tokens
    got, expected = rows(live), rows(never)
    assert torch.equal(got, torch.cat([raw[: cut.start], raw[cut.end :]]))
    assert torch.equal(got[: cut.start], expected[: cut.start])
    assert torch.equal(got[:, 0], expected[:, 0])
    assert torch.equal(hot(live)[0], hot(never)[0])
    for layer in range(1, 4):  # the control: with more than one layer, what survives has read the span
        assert not torch.equal(got[cut.start :, layer], expected[cut.start :, layer])
    assert not torch.equal(live.next_logits(), never.next_logits())
    live.close()
    never.close()


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_with_one_layer_a_fast_eviction_is_exact_and_says_so_of_none(
    cut: Cut, pair_of_one_layer: tuple[Engine, Engine]
) -> None:
    one, two = pair_of_one_layer
    live, never = started(one, TOKENS[:100]), started(two, without(TOKENS[:100], cut))
    poisoned = started(two, TOKENS[:100])
    assert not evict(live, [cut], "fast").exact
    assert torch.equal(rows(live), rows(never))
    assert alike(hot(live), hot(never))
    assert torch.equal(live.next_logits(), never.next_logits())
    assert not torch.equal(poisoned.next_logits(), never.next_logits())
    for each in (live, never, poisoned):
        each.close()


def test_exact_repairs_what_fast_left(pair: tuple[Engine, Engine]) -> None:
    live, never = started(pair[0], TOKENS[:100]), started(pair[1], without(TOKENS[:100], Cut(10, 30), Cut(70, 75)))
    evict(live, [Cut(10, 30)], "fast")
    assert not evict(live, [Cut(70, 80)], "rollback").exact
    live.append(TOKENS[90:100])
    receipt = evict(live, [Cut(50, 55)])
    assert receipt.exact
    assert live.approx is None
    assert same(live, never)
    live.close()
    never.close()


# T7: one rotation from what is stored


@settings(max_examples=20)
@given(data=st.data())
def test_after_any_evictions_a_row_is_rotated_once(data: st.DataObject, pair: tuple[Engine, Engine]) -> None:
    live = started(pair[0], TOKENS[:150])
    raw, positions = rows(live), list(range(150))
    for _ in range(data.draw(st.integers(1, 5))):
        start = data.draw(st.integers(0, len(positions) - 2))
        cut = Cut(start, data.draw(st.integers(start + 1, min(start + 40, len(positions) - 1))))
        evict(live, [cut], "fast")
        del positions[cut.start : cut.end]
    k = raw[positions][:, :, 0]
    for layer in range(4):
        direct = live.engine.rotary.rotate(k[:, layer], 0)
        assert torch.equal(hot(live)[layer][0].transpose(0, 1), direct)
    assert torch.equal(rows(live), raw[positions])
    # The control: keys that are kept rotated, and turned further by what went before them, drift.
    rotary, heads = live.engine.rotary, k[:, 0]
    turned = rotary.rotate(rotary.rotate(heads, 0).reshape(1, -1, heads.shape[-1]), 37).view_as(heads)
    assert not torch.equal(turned, rotary.rotate(heads, 37))
    assert torch.allclose(turned, rotary.rotate(heads, 37), atol=1e-3)
    live.close()


# T8: approximate blocks are never found


def test_what_a_fast_eviction_left_is_never_found(pair: tuple[Engine, Engine]) -> None:
    engine, tokens = pair[0], TOKENS[200:330]
    live = started(engine, tokens)
    evict(live, [Cut(20, 50)], "fast")
    live.append(TOKENS[:40])
    again = resume(engine, record(live))
    assert again.approx == live.approx
    asked = started(engine, list(live.tokens))
    assert asked.counts.tokens_reused == SIZE  # the control: the block before the span is found
    assert not {*asked.blocks[1:]} & {*live.blocks}
    assert engine.index.rebuild(engine.store).blocks
    assert all(engine.index.domain_of(cid) is None for cid in live.blocks[1:])
    for each in (live, again, asked):
        each.close()


def test_a_fast_eviction_that_was_killed_before_its_root_is_never_found(pair: tuple[Engine, Engine]) -> None:
    engine, tokens = pair[0], TOKENS[300:430]
    live = started(engine, tokens)
    record(live)
    control = started(engine, TOKENS[61::-1])  # exact, and without a root either
    evict(live, [Cut(20, 50)], "fast")
    kept = len(tokens) - 30
    engine.index.rebuild(engine.store)
    assert [engine.index.domain_of(cid) is None for cid in live.blocks] == [False, *[True] * (kept // SIZE - 1)]
    assert all(engine.index.domain_of(cid) is not None for cid in control.blocks)
    for each in (live, control):
        each.close()


def test_reasons_add_up_and_stay_within_a_root(pair: tuple[Engine, Engine]) -> None:
    live = started(pair[0], TOKENS[:100])
    for _ in range(5):
        evict(live, [Cut(at, at + 1) for at in range(1, 30, 2)], "fast")
        resume(pair[0], record(live)).close()
    assert len((live.approx or "").encode()) <= 256
    live.close()


@pytest.mark.slow
def test_the_real_model(tmp_path_factory: pytest.TempPathFactory) -> None:
    from cyberkv.runtime.models.registry import smollm2_source

    registry = Registry(tmp_path_factory.mktemp("models"))
    loaded = registry.load(registry.add(smollm2_source(), name="smollm2"))
    text = [(7919 * i * i + 104729 * i + 13) % 49000 + 32 for i in range(304)]
    for one, two in two_engines(loaded, tmp_path_factory):
        for mode, cut in (("exact", Cut(64, 160)), ("exact", Cut(70, 153)), ("rollback", Cut(150, 304))):
            compare(one, two, text, [cut], mode)
        live, never = started(one, text), started(two, without(text, Cut(64, 160)))
        branch = open_branch(never)
        branch.append(text[64:160])
        drop_branch(never, branch, len(never.tokens))
        evict(live, [Cut(64, 160)], "fast")
        got, expected = rows(live), rows(never)
        assert torch.equal(got[:64], expected[:64])
        assert torch.equal(got[:, 0], expected[:, 0])
        assert not any(torch.equal(got[64:, layer], expected[64:, layer]) for layer in range(1, 30))
        assert not torch.equal(live.next_logits(), never.next_logits())
        evict(live, [Cut(200, 208)])
        evict(never, [Cut(200, 208)], "fast")
        assert torch.equal(rows(live)[:200], expected[:200])
        greedy = list(started(two, without(text, Cut(64, 160))).generate(8, Sampling()))
        again = started(one, text)
        evict(again, [Cut(64, 160)])
        assert list(again.generate(8, Sampling())) == greedy
        one.pool, two.pool = Pool(one.geometry, 1), Pool(two.geometry, 1)
