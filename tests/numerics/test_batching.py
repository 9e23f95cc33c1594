"""Many conversations in one step: each has, bit for bit, what it would have alone, whoever comes and goes."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

from cyberkv.cybergraph.errors import OutOfRange, Refused, TierFull
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.keeping.fsck import fsck
from cyberkv.cybergraph.store import DiskStore
from cyberkv.runtime.batching import step as step_module
from cyberkv.runtime.batching.admission import Limits
from cyberkv.runtime.batching.drafting import PromptLookup
from cyberkv.runtime.batching.front import Front
from cyberkv.runtime.batching.parking import park, unpark
from cyberkv.runtime.batching.request import Finish, Request
from cyberkv.runtime.batching.scheduler import Scheduler
from cyberkv.runtime.canonical import probe
from cyberkv.runtime.checkpoint import checkpoint, resume
from cyberkv.runtime.engine import Engine, build_engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.models.registry import Registry, smollm2_source
from cyberkv.runtime.pool import Pool
from cyberkv.runtime.sampling import Sampling
from tests.numerics.together import TOKENS, Heard, State, alone

Engines = Callable[..., Engine]


def drain(scheduler: Scheduler, *, most: int = 2000) -> int:
    steps = 0
    while scheduler.busy:
        scheduler.step()
        assert scheduler.check_integrity() == []
        steps += 1
        assert steps < most
    return steps


def requests(seed: int, count: int = 8) -> list[Request]:
    draw = random.Random(seed)
    return [
        Request(
            tuple(
                TOKENS[(start := draw.choice([0, 0, 0, 7, 50])) : start + draw.choice([1, 5, 16, 33, 100, 250, 260])]
            ),
            max_tokens=draw.choice([0, 1, 5, 20]),
            sampling=Sampling(draw.choice([0.0, 5.0]), seed=number),
            stop=frozenset(draw.sample(range(250), 3)),
            drafter=draw.choice([None, None, PromptLookup()]),
            keep=State.of,
        )
        for number in range(count)
    ]


def compare(engine: Engine, oracle: Engine, asked: list[Request], limits: Limits, seed: int = 0) -> list[Heard]:
    draw, scheduler = random.Random(seed), Scheduler(engine, limits)
    heard = [Heard() for _ in asked]
    for request, ear in zip(asked, heard, strict=True):
        scheduler.submit(request, ear)
        for _ in range(draw.choice([0, 0, 1, 3])):
            scheduler.step()
    drain(scheduler)
    assert engine.pool.used_blocks == 0
    for request, ear in zip(asked, heard, strict=True):
        chosen, state = alone(oracle, request)
        assert ear.outcome.error is None
        assert list(ear.outcome.tokens) == ear.tokens == chosen
        assert isinstance(ear.outcome.kept, State)
        assert ear.outcome.kept.same(state)
        assert ear.outcome.finish is (Finish.LENGTH if len(chosen) == request.max_tokens else Finish.STOP)
        assert ear.outcome.length_tokens == len(request.tokens) + len(chosen)
    return heard


@pytest.mark.parametrize(("family", "threads"), [("llama", 1), ("llama", 2), ("mistral", 1), ("qwen3", 1),
                                                 ("smollm3-window", 1)])  # fmt: skip
def test_any_mix_gives_what_each_would_have_alone(family: str, threads: int, tiny_engine: Engines) -> None:
    engine, oracle = tiny_engine(family), tiny_engine(family, home="oracle")
    assert engine.domain.scattered is None
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        heard = compare(engine, oracle, requests(threads), Limits(running=5, prefill_tokens=64), seed=threads)
    finally:
        torch.set_num_threads(before)
    assert list(fsck(engine.store, engine.index)) == []
    other = alone(oracle, replace(requests(threads)[0], tokens=(*requests(threads)[0].tokens[:-1], 251)))[1]
    assert not other.same(heard[0].outcome.kept)


def test_who_is_put_out_of_a_full_pool_comes_back_bit_equal(tiny_engine: Engines) -> None:
    engine, oracle = tiny_engine(), tiny_engine(home="oracle")
    engine.pool = Pool(engine.geometry, 11)
    asked = [
        Request(tuple(TOKENS[at : at + 30]), max_tokens=60, sampling=Sampling(5.0, seed=at), keep=State.of)
        for at in (0, 100, 200, 300)
    ]
    heard = compare(engine, oracle, asked, Limits(running=4))
    assert heard[0].outcome.preempted == 0
    assert sum(ear.outcome.preempted for ear in heard) > 0


def test_parked_rows_are_what_comes_back(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    live = Live(engine)
    live.append(TOKENS[:40])
    before, parked = State.of(live), park(live)
    live.close()
    again = unpark(engine, parked)
    assert State.of(again).same(before)
    again.close()
    damaged = replace(parked, tail_rows=tuple(bytes(len(rows)) for rows in parked.tail_rows))
    assert not State.of(unpark(engine, damaged)).same(before)


def test_blocks_that_are_gone_while_parked_are_computed_again(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    live = Live(engine)
    live.append(TOKENS[:70])
    before, parked = State.of(live), park(live)
    live.close()
    engine.pool = Pool(engine.geometry, 64)  # and nothing is kept in memory
    engine.store.delete_many([parked.blocks[2]])
    again = unpark(engine, parked)
    assert len(again.tokens) == 32
    again.append(TOKENS[32:70])
    assert State.of(again).same(before)


def test_a_shared_prompt_is_computed_once_and_held_once(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    sealed: list[int] = []
    scheduler = Scheduler(engine, Limits(prefill_tokens=64))
    heard = [Heard() for _ in range(6)]
    for number, ear in enumerate(heard):
        scheduler.submit(Request(tuple(TOKENS[:320]), max_tokens=40, sampling=Sampling(9.0, seed=number // 2)), ear)
    most = 0
    while scheduler.busy:
        scheduler.step()
        most = max(most, engine.pool.used_blocks)
        assert scheduler.check_integrity() == []
    sealed = [ear.outcome.counts.blocks_new for ear in heard]
    reused = [ear.outcome.counts.tokens_reused for ear in heard]
    assert reused == [0] + [320] * 5
    assert sealed[0] >= 20
    assert max(sealed[1:]) <= 3  # of its own answer
    assert heard[0].tokens == heard[1].tokens != heard[2].tokens
    assert most < 20 + 6 * 3  # two equal answers share their blocks, too


def test_prompts_do_not_hold_up_those_that_are_decoded(tiny_engine: Engines) -> None:
    engine, scheduler = tiny_engine(), Scheduler(tiny_engine(), Limits(prefill_tokens=32))
    first, second = Heard(), Heard()
    scheduler.submit(Request(tuple(TOKENS[:20]), max_tokens=30), first)
    scheduler.step()
    scheduler.submit(Request(tuple(TOKENS[300:700]), max_tokens=1), second)
    for step in range(1, 13):
        scheduler.step()
        assert len(first.tokens) == step + 1
        assert second.tokens == []
    scheduler.step()
    assert len(second.tokens) == 1
    drain(scheduler)
    assert engine.geometry.block_size == 16


def test_a_batched_conversation_is_recorded_and_goes_on(tiny_engine: Engines) -> None:
    engine, oracle = tiny_engine(), tiny_engine(home="oracle")
    scheduler, ear = Scheduler(engine), Heard()
    keep = lambda live: checkpoint(live, title="test", created="2026-01-01T00:00:00Z")  # noqa: E731
    scheduler.submit(Request(tuple(TOKENS[:20]), max_tokens=25, keep=keep), ear)
    drain(scheduler)
    chosen, state = alone(oracle, Request(tuple(TOKENS[:20]), max_tokens=25))
    root: Any = ear.outcome.kept
    resumed = resume(engine, root)
    assert State.of(resumed).same(state)
    resumed.close()

    more = Heard()
    scheduler.submit(
        Request(tuple(TOKENS[50:80]), max_tokens=9, open=lambda engine: resume(engine, root), keep=State.of), more
    )
    drain(scheduler)
    expected, state = alone(oracle, Request((*TOKENS[:20], *chosen, *TOKENS[50:80]), max_tokens=9))
    assert more.tokens == expected
    assert isinstance(more.outcome.kept, State)
    assert more.outcome.kept.same(state)


def test_a_tail_that_was_decoded_alone_is_computed_again_first(tiny_engine: Engines) -> None:
    engine, oracle = tiny_engine(), tiny_engine(home="oracle")
    live = Live(engine)
    live.append(TOKENS[:20])
    answer = list(live.generate(7, Sampling()))
    scheduler, ear = Scheduler(engine), Heard()
    scheduler.submit(Request((), max_tokens=12, open=lambda _: live, keep=State.of), ear)
    drain(scheduler)
    expected, state = alone(oracle, Request((*TOKENS[:20], *answer), max_tokens=12))
    assert ear.tokens == expected
    assert isinstance(ear.outcome.kept, State)
    assert ear.outcome.kept.same(state)


def test_where_rows_may_not_share_a_step_each_is_decoded_alone(tiny_engine: Engines) -> None:
    engine, oracle = tiny_engine(), tiny_engine(home="oracle")
    engine.domain = replace(engine.domain, scattered="rows differ")
    scheduler = Scheduler(engine, Limits(prefill_tokens=32))
    heard = [Heard() for _ in range(3)]
    for number, ear in enumerate(heard):
        tokens = tuple(TOKENS[: 40 + 9 * number])
        scheduler.submit(Request(tokens, max_tokens=20, drafter=PromptLookup(), keep=State.of), ear)
    drain(scheduler)
    for number, ear in enumerate(heard):
        live = Live(oracle)
        live.append(TOKENS[: 40 + 9 * number])
        assert list(live.generate(20, Sampling())) == ear.tokens
        assert isinstance(ear.outcome.kept, State)
        assert ear.outcome.kept.same(State.of(live))
        assert ear.outcome.kept.prefilled < len(live.tail)
        live.close()


def test_the_known_answer_test_finds_steps_that_may_not_be_shared(
    tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, join = tiny_engine(), step_module.join
    assert engine.domain.scattered is None
    monkeypatch.setattr(step_module, "join", lambda *parts: join(*parts) * 1.00001)
    found = probe(engine.decoder, engine.rotary, engine.geometry)
    assert found.broken is None
    assert found.name == engine.domain.name
    assert found.scattered is not None


@pytest.fixture
def other_engine(
    request: pytest.FixtureRequest, tiny: Callable[[str], Path], tmp_path: Path
) -> Iterator[Callable[[str], Engine]]:
    registry = Registry(tmp_path / "models")
    loaded = registry.load(registry.add(tiny("llama"), name="other", **request.param))
    with (
        DiskStore(tmp_path / "a" / "store") as one, Index(tmp_path / "a" / "index") as first,
        DiskStore(tmp_path / "b" / "store") as two, Index(tmp_path / "b" / "index") as second,
    ):  # fmt: skip
        homes = {"a": (one, first), "b": (two, second)}
        yield lambda home: build_engine(loaded, *homes[home], capacity_tokens=4096)


@pytest.mark.parametrize("other_engine", [{"dtype": "bf16"}, {"scheme": "int8/row/f32"}], indirect=True, ids=str)
def test_other_element_types_are_equal_too_or_say_why_not(other_engine: Callable[[str], Engine]) -> None:
    engine, oracle = other_engine("a"), other_engine("b")
    if engine.domain.broken or engine.domain.scattered:  # what the known-answer test finds depends on the machine
        return
    compare(engine, oracle, requests(5), Limits(running=5, prefill_tokens=64))


def test_what_can_never_run_is_refused_at_once(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    engine.pool = Pool(engine.geometry, 4)
    scheduler = Scheduler(engine, Limits(requests=1))
    for tokens, error in (((1,) * 3000, OutOfRange), ((9999,), OutOfRange), ((1,) * 64, TierFull)):
        with pytest.raises(error):
            scheduler.submit(Request(tokens, max_tokens=1), Heard())
    empty, ear = Heard(), Heard()
    scheduler.submit(Request((), max_tokens=1), empty)
    with pytest.raises(TierFull, match="under way"):
        scheduler.submit(Request((1,), max_tokens=1), ear)
    drain(scheduler)
    assert isinstance(empty.outcome.error, OutOfRange)
    scheduler.submit(Request((1,) * 40, max_tokens=60), ear)  # an answer that no pool row is left for
    drain(scheduler)
    assert isinstance(ear.outcome.error, TierFull)
    assert len(ear.tokens) >= 4 * 16 - 40


def test_an_answer_ends_at_the_last_position_and_where_its_own_rule_says_so(tiny_engine: Engines) -> None:
    engine, oracle = tiny_engine(), tiny_engine(home="oracle")
    most = engine.config.max_positions
    scheduler, full, ruled = Scheduler(engine, Limits(prefill_tokens=1024)), Heard(), Heard()
    long = Request(
        tuple(TOKENS[i % 600] for i in range(most - 3)), max_tokens=10, drafter=PromptLookup(), keep=State.of
    )
    expected, state = alone(oracle, Request(tuple(TOKENS[:30]), max_tokens=20, sampling=Sampling(5.0)))
    asked = Request(
        tuple(TOKENS[:30]),
        20,
        Sampling(5.0),
        ends=lambda token: token == expected[11],
        keep=lambda live: live.tokens[:],
    )
    scheduler.submit(long, full)
    scheduler.submit(asked, ruled)
    drain(scheduler)
    assert full.tokens == alone(oracle, long)[0]
    assert (len(full.tokens), full.outcome.finish) == (3, Finish.LENGTH)
    ends = expected.index(expected[11]) + 1
    assert ruled.tokens == expected[:ends]
    assert (ruled.outcome.finish, ruled.outcome.kept) == (Finish.STOP, state.tokens[: 30 + ends])


def test_threads_hand_in_and_iterate(tiny_engine: Engines) -> None:
    engine, oracle = tiny_engine(), tiny_engine(home="oracle")
    answers: dict[int, list[int]] = {}
    with Front(engine, Limits(running=3, prefill_tokens=64)) as front:

        def ask(number: int) -> None:
            ticket = front.submit(Request(tuple(TOKENS[number : number + 60]), max_tokens=12))
            answers[number] = list(ticket)
            assert ticket.outcome(0).finish is Finish.LENGTH

        threads = [Thread(target=ask, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        endless = front.submit(Request(tuple(TOKENS[:30]), max_tokens=1900))
        given = iter(endless)
        next(given)
        endless.cancel()
        list(given)
        assert endless.outcome(60).finish is Finish.CANCELLED
        failing = front.submit(Request((), max_tokens=1))
        with pytest.raises(OutOfRange):
            list(failing)
        left = front.submit(Request(tuple(TOKENS[:30]), max_tokens=1900))
    assert left.outcome(0).finish is Finish.CANCELLED
    assert engine.pool.used_blocks == 0
    with pytest.raises(Refused):
        front.submit(Request((1,), max_tokens=1))
    for number, answer in answers.items():
        assert answer == alone(oracle, Request(tuple(TOKENS[number : number + 60]), max_tokens=12))[0]


def test_what_breaks_every_step_fails_every_request(tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine()

    def gone(*_: Any) -> bool:
        raise OSError("the index went away")

    monkeypatch.setattr("cyberkv.runtime.batching.scheduler.room_for", gone)
    with Front(engine) as front:
        tickets = [front.submit(Request(tuple(TOKENS[:30]), max_tokens=1900)) for _ in range(2)]
        for ticket in tickets:
            assert isinstance(ticket.outcome(60).error, OSError)
        monkeypatch.undo()
        assert len(list(front.submit(Request(tuple(TOKENS[:30]), max_tokens=3)))) == 3
    assert engine.pool.used_blocks == 0


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_the_real_model_is_equal_in_every_layer(threads: int, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "models")
    loaded = registry.load(registry.add(smollm2_source(), name="smollm2"))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with (
            DiskStore(tmp_path / "a") as one, Index(tmp_path / "ai") as first,
            DiskStore(tmp_path / "b") as two, Index(tmp_path / "bi") as second,
        ):  # fmt: skip
            engine, oracle = build_engine(loaded, one, first), build_engine(loaded, two, second)
            assert engine.domain.scattered is None
            asked = [
                Request(tuple(TOKENS[at : at + length]), max_tokens=20, keep=State.of)
                for at, length in ((0, 250), (0, 100), (300, 17), (400, 520))
            ]
            compare(engine, oracle, asked, Limits(running=4, prefill_tokens=256))
    finally:
        torch.set_num_threads(before)
