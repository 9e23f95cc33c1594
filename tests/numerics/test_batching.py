"""Many conversations in one step: each has, bit for bit, what it would have alone, whoever comes and goes."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.keeping.fsck import fsck
from cyberkv.cybergraph.store import DiskStore
from cyberkv.runtime.batching.admission import Limits
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
from cyberkv.runtime.steps import step as step_module
from cyberkv.runtime.steps.drafting import PromptLookup
from tests.numerics.together import TOKENS, Heard, State, alone, drain

Engines = Callable[..., Engine]


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
                                                 ("smollm3-window", 1),
                                                 *(pytest.param(each, 1, marks=pytest.mark.slow)
                                                   for each in ("glm", "qwen3-yarn"))])  # fmt: skip
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
        Request(tuple(TOKENS[at : at + 30]), max_tokens=30, sampling=Sampling(5.0, seed=at), keep=State.of)
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


def test_a_partly_shared_prompt_comes_into_a_nearly_full_pool(tiny_engine: Engines) -> None:
    """What others hold takes no room again: alone the newcomer has far too little."""
    asked = [
        Request(tuple(TOKENS[:320]), max_tokens=20, keep=State.of),
        Request((*TOKENS[:250], *TOKENS[600:630]), max_tokens=10, keep=State.of),
    ]
    most: dict[bool, int] = {}
    for shares in (True, False):
        engine, oracle = tiny_engine(home=f"{shares}"), tiny_engine(home=f"oracle {shares}")
        engine.pool = Pool(engine.geometry, 28)
        newcomer = asked[1] if shares else replace(asked[1], tokens=tuple(TOKENS[400:680]))
        scheduler, heard = Scheduler(engine, Limits(running=4, prefill_tokens=512)), (Heard(), Heard())
        scheduler.submit(asked[0], heard[0])
        scheduler.step()
        scheduler.submit(newcomer, heard[1])
        most[shares] = 0
        while scheduler.busy:
            scheduler.step()
            assert scheduler.check_integrity() == []
            most[shares] = max(most[shares], len(scheduler.running))
        for request, ear in zip((asked[0], newcomer), heard, strict=True):
            chosen, state = alone(oracle, request)
            assert ear.tokens == chosen
            assert isinstance(ear.outcome.kept, State)
            assert ear.outcome.kept.same(state)
            assert ear.outcome.preempted == 0
        assert heard[1].outcome.counts.tokens_reused == (240 if shares else 0)
    assert most == {True: 2, False: 1}


def test_rotated_copies_bound_how_many_run_at_once(tiny_engine: Engines) -> None:
    """Rows that are shared are once in the pool, and rotated once for each: those count, too."""
    most: dict[int, int] = {}
    asked = [
        Request(tuple(TOKENS[:240]), 20, Sampling(5.0, seed=number), drafter=PromptLookup(), keep=State.of)
        for number in range(4)
    ]
    oracle = tiny_engine(home="oracle")
    expected = [alone(oracle, request)[1] for request in asked]
    for panels in (3, 100):
        engine = tiny_engine(home=f"{panels}")
        engine.memory.limit_bytes = engine.memory.copy_bytes(256 * panels)
        scheduler, heard, most[panels] = Scheduler(engine), [Heard() for _ in asked], 0
        for request, ear in zip(asked, heard, strict=True):
            scheduler.submit(request, ear)
        while scheduler.busy:
            scheduler.step()
            assert scheduler.check_integrity() == []
            assert engine.memory.bytes <= engine.memory.limit_bytes
            most[panels] = max(most[panels], len(scheduler.running))
        for state, ear in zip(expected, heard, strict=True):
            assert ear.outcome.error is None
            assert isinstance(ear.outcome.kept, State)
            assert ear.outcome.kept.same(state)
    assert most[100] == 4 > most[3]


def test_who_grows_beyond_the_bound_on_rotated_copies_makes_the_youngest_leave(tiny_engine: Engines) -> None:
    engine, oracle = tiny_engine(), tiny_engine(home="oracle")
    engine.memory.limit_bytes = engine.memory.copy_bytes(3 * 256)
    asked = [Request(tuple(TOKENS[at : at + 220]), 45, Sampling(5.0, seed=at), keep=State.of) for at in (0, 300)]
    heard = compare(engine, oracle, asked, Limits())
    assert (heard[0].outcome.preempted, heard[1].outcome.preempted) == (0, 1)


def test_guesses_that_are_wrong_leave_no_hash_and_no_write(
    tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Request(tuple(TOKENS[:230]), max_tokens=40, keep=State.of)
    hashed: dict[bool, list[list[Any]]] = {}
    for drafted in (False, True):
        engine, heard = tiny_engine(home=f"{drafted}"), Heard()
        written: list[list[Any]] = []
        put_many = engine.store.put_many
        monkeypatch.setattr(
            engine.store,
            "put_many",
            lambda items, put_many=put_many, written=written, **options: (
                written.append([cid for cid, _ in items]) or put_many(items, **options)
            ),
        )
        scheduler = Scheduler(engine)
        drafter = (lambda tokens: [(tokens[-1] + n) % 250 for n in range(1, 16)]) if drafted else None
        scheduler.submit(replace(asked, drafter=drafter), heard)
        while scheduler.busy:
            scheduler.step()
            for _, place in scheduler.running:
                table, length = place.live.sequence.table, len(place.live.tokens)
                assert len(table) == -(-length // 16)
                assert not engine.pool.rows[table[-1], :, :, (length - 1) % 16 + 1 :].any()  # the pool is fresh
        counts = heard.outcome.counts
        assert counts.tokens_drafted > 100 if drafted else counts.tokens_drafted == 0
        assert counts.tokens_accepted < counts.tokens_drafted / 10 or not drafted
        assert heard.outcome.counts.blocks_new == 270 // 16
        hashed[drafted] = written
    assert hashed[True] == hashed[False]
    assert len(hashed[True]) > 1


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


def test_a_step_has_a_bounded_number_of_prompt_tokens_however_many_prompts_wait(
    tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, run, seen = Scheduler(tiny_engine(), Limits(prefill_tokens=64)), step_module.Step.run, list[list[int]]()

    def counted(step: step_module.Step) -> Any:
        seen.append([len(span.tokens) for span in step.prompts])
        return run(step)

    monkeypatch.setattr(step_module.Step, "run", counted)
    for at in (0, 200, 400):
        scheduler.submit(Request(tuple(TOKENS[at : at + 100]), max_tokens=1), Heard())
    drain(scheduler)
    assert all(sum(-(-count // 16) * 16 for count in counts) <= 64 for counts in seen)
    assert any(len(counts) > 1 for counts in seen)  # what the oldest leaves of it goes to the next
    assert sum(map(sum, seen)) == 300


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
    engine.domain = oracle.domain = replace(engine.domain, scattered="rows differ", floor_rows=16)
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
    found = probe(engine.decoder, engine.processor, engine.geometry)
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
                Request(tuple(TOKENS[at : at + length]), max_tokens=12, keep=State.of)
                for at, length in ((0, 250), (0, 100), (300, 25), (400, 520))
            ]
            compare(engine, oracle, asked, Limits(running=4, prefill_tokens=256))
    finally:
        torch.set_num_threads(before)
