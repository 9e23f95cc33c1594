"""The scheduler against a plain oracle: whatever comes, goes, is interrupted or fails, nothing leaks."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from cyberkv.cybergraph.errors import TierFull
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.runtime.batching import roster, scheduler
from cyberkv.runtime.batching.admission import Limits
from cyberkv.runtime.batching.request import Finish, Outcome, Request
from cyberkv.runtime.batching.scheduler import Scheduler
from cyberkv.runtime.engine import Engine, build_engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.models.registry import Registry
from cyberkv.runtime.sampling import Sampling
from cyberkv.runtime.steps.seats import Seats
from cyberkv.runtime.steps.step import Step
from tests.numerics.tiny import tiny_model

TEXT = [(13 * i * i + 11 * i + 5) % 250 for i in range(300)]
BLOCKS = 9
PREFILL_TOKENS = 32
PLACES = (
    "run", "attend", "settle", "take_rows", "seal", "_merge", "load_known", "put_many", "allocate", "ensure", "take",
    "_copy_out", "park", "check", "open_job",
)  # fmt: skip
"""What may fail in the middle of a step, or be stopped there."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Engine]]:
    """Give engines over one model, each with a pool and a store of its own."""
    folder = tmp_path_factory.mktemp("scheduler")
    registry = Registry(folder / "models")
    loaded = registry.load(registry.add(tiny_model("llama", folder / "tiny", num_hidden_layers=1), name="tiny"))
    threads, opened = torch.get_num_threads(), list[Index]()
    torch.set_num_threads(1)
    domain = build_engine(loaded, MemoryStore(), Index(folder / "probe")).domain

    def make() -> Engine:
        opened.append(Index(folder / f"index-{len(opened)}"))
        return build_engine(loaded, MemoryStore(), opened[-1], capacity_tokens=16 * (BLOCKS - 2), domain=domain)

    yield make
    for index in opened:
        index.close()
    torch.set_num_threads(threads)


class Ear:
    def __init__(self, request: Request) -> None:
        self.request = request
        self.tokens: list[int] = []
        self.outcomes: list[Outcome] = []
        self.steps_left = 0

    def __call__(self, event: int | Outcome) -> None:
        if isinstance(event, Outcome):
            self.outcomes.append(event)
        else:
            assert not self.outcomes
            self.tokens.append(event)


def machine(make: Callable[[], Engine], oracle: Engine) -> type[RuleBasedStateMachine]:
    known: dict[tuple[Any, ...], list[int]] = {}

    def expected(request: Request, tokens: int) -> list[int]:
        """The first tokens of the answer, and never more than it may have."""
        most = min(tokens, request.max_tokens)
        chosen = known.setdefault((request.tokens, request.sampling), [])
        if len(chosen) < most:
            live = Live(oracle)
            live.append([*request.tokens, *chosen])
            while len(chosen) < most:
                chosen.append(request.sampling.choose(live.next_logits(), len(live.tokens)))
                live.append(chosen[-1:])
            live.close()
        return chosen[:most]

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.engine = make()
            assert self.engine.pool.capacity_blocks == BLOCKS
            self.scheduler = Scheduler(self.engine, Limits(running=3, prefill_tokens=PREFILL_TOKENS))
            self.ears: dict[int, Ear] = {}
            self.excused: set[int] = set()
            """Requests that may have failed: they took part in a step that was made to fail."""

        @rule(
            start=st.sampled_from([0, 0, 40]), count=st.integers(1, 90), most=st.integers(0, 40), seed=st.integers(0, 1)
        )
        def submit(self, start: int, count: int, most: int, seed: int) -> None:
            most = min(most, BLOCKS * 16 - 17 - count)  # alone it has room
            request = Request(tuple(TEXT[start : start + count]), most, Sampling(5.0 * seed, seed=seed))
            ear = Ear(request)
            # Everybody before it may need all its steps, and be put out and come back as often as others come in.
            before = [each for each in self.ears.values() if not each.outcomes]
            ear.steps_left = 2 * sum(each.request.max_tokens + 5 for each in (*before, ear)) * (len(before) + 1)
            self.ears[self.scheduler.submit(request, ear)] = ear

        @rule()
        def step(self) -> None:
            self.scheduler.step()
            for ear in self.ears.values():
                ear.steps_left -= 1
                assert ear.outcomes or ear.steps_left > 0

        @rule(pick=st.integers(0, 50))
        def cancel(self, pick: int) -> None:
            if self.ears:
                self.scheduler.cancel(list(self.ears)[pick % len(self.ears)])

        @rule(where=st.sampled_from(PLACES), error=st.sampled_from(
            [KeyboardInterrupt, MemoryError, TierFull]), skip=st.integers(0, 3))  # fmt: skip
        def fail(self, where: str, error: type[BaseException], skip: int) -> None:
            owner: Any = {
                "take_rows": Live, "seal": Live, "_merge": Live, "load_known": Live, "put_many": self.engine.store,
                "allocate": self.engine.pool, "ensure": self.engine.residency, "take": Seats, "_copy_out": Seats,
                "park": roster, "check": scheduler, "open_job": roster,
            }.get(where, Step)  # fmt: skip
            sound, calls = getattr(owner, where), 0

            def failing(*args: Any, **options: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls > skip:
                    raise error("made to fail")
                return sound(*args, **options)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(owner, where, failing)
                try:
                    self.scheduler.step()
                except KeyboardInterrupt:
                    assert error is KeyboardInterrupt
            if error is not KeyboardInterrupt:
                self.excused |= self.ears.keys()

        @invariant()
        def adds_up(self) -> None:
            """References sum to leases, each block is once in the pool, and nothing runs that ought not to."""
            pool, tables = self.engine.pool, [place.live.sequence.table for _, place in self.scheduler.running]
            held = Counter(row for table in tables for row in table)
            assert [pool.users(row) for row in range(BLOCKS)] == [held[row] for row in range(BLOCKS)]
            rows = {cid: row for _, place in self.scheduler.running
                    for cid, row in zip(place.live.blocks, place.live.sequence.table, strict=False)}  # fmt: skip
            assert len({*rows.values()}) == len(rows)
            for _, place in self.scheduler.running:
                live = place.live
                assert len(live.blocks) == len(live.tokens) // 16 <= len(live.sequence.table)
                assert self.engine.store.missing(live.blocks) == []
            assert self.scheduler.check_integrity() == []
            assert len(self.scheduler.running) <= 3
            going = {job.number for job in self.scheduler.jobs} | {job.number for job in self.scheduler._arrived}
            assert going == {number for number, ear in self.ears.items() if not ear.outcomes}
            for ear in self.ears.values():
                assert ear.tokens == expected(ear.request, len(ear.tokens))

        def teardown(self) -> None:
            for _ in range(3000):
                if not self.scheduler.busy:
                    break
                self.scheduler.step()
            self.adds_up()
            assert self.engine.pool.used_blocks == 0
            for number, ear in self.ears.items():
                [outcome] = ear.outcomes
                assert list(outcome.tokens) == ear.tokens
                if outcome.finish is Finish.LENGTH:
                    assert ear.tokens == expected(ear.request, ear.request.max_tokens)
                elif outcome.finish is Finish.FAILED:
                    assert number in self.excused, outcome.error
            self.engine.index.close()

    return Machine


def test_nothing_leaks_starves_or_is_lost(engine: Callable[[], Engine]) -> None:
    oracle = engine()
    run_state_machine_as_test(
        machine(engine, oracle), settings=settings(max_examples=12, stateful_step_count=30, deadline=None)
    )


def test_the_oldest_never_waits_for_a_younger_one(engine: Callable[[], Engine]) -> None:
    """Bounded waiting: each request ends within the steps that those before it and itself need at most."""
    made = engine()
    scheduler = Scheduler(made, Limits(running=3, prefill_tokens=PREFILL_TOKENS))
    ears = [Ear(Request(tuple(TEXT[at : at + 60]), max_tokens=40)) for at in range(0, 120, 10)]
    for ear in ears:
        scheduler.submit(ear.request, ear)
    ended: list[int] = []
    for step in range(1, 2000):
        if not scheduler.busy:
            break
        scheduler.step()
        ended += [number for number, ear in enumerate(ears) if ear.outcomes and number not in ended]
        assert len(ended) >= step // (2 + 41 + 2) - 1  # prompt in two chunks, answer, and one that comes back
    assert sorted(ended) == list(range(12))
    assert any(ear.outcomes[0].preempted for ear in ears)


def test_one_that_fails_does_not_disturb_the_others(
    engine: Callable[[], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(poisoned: int | None) -> list[Ear]:
        made = engine()
        scheduler = Scheduler(made, Limits(running=3))
        ears = [Ear(Request(tuple(TEXT[at : at + 20]), max_tokens=10)) for at in (0, 60, 120)]
        for ear in ears:
            scheduler.submit(ear.request, ear)
        attend = Step._attend_seated

        def poisonous(step: Step, *args: Any) -> Any:
            if any(span.tokens and span.start == 25 and span.sequence is victim for span in step.seated):
                raise MemoryError("no room for this one")
            return attend(step, *args)

        scheduler.step()
        victim = None if poisoned is None else scheduler.running[poisoned][1].live.sequence
        with monkeypatch.context() as patch:
            patch.setattr(Step, "_attend_seated", poisonous)
            while scheduler.busy:
                scheduler.step()
                assert scheduler.check_integrity() == []
        return ears

    well, ill = run(None), run(1)
    assert [ear.outcomes[0].finish for ear in ill] == [Finish.LENGTH, Finish.FAILED, Finish.LENGTH]
    assert isinstance(ill[1].outcomes[0].error, MemoryError)
    assert (ill[0].tokens, ill[2].tokens) == (well[0].tokens, well[2].tokens)
    assert ill[1].tokens == well[1].tokens[: len(ill[1].tokens)]


@pytest.mark.parametrize(("owner", "where"), [("pool", "allocate"), ("memory", "take")])
def test_who_finds_no_memory_fails_alone(
    owner: str, where: str, engine: Callable[[], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = engine()
    scheduler = Scheduler(made)
    first, second = (Ear(Request(tuple(TEXT[at : at + 20]), max_tokens=10)) for at in (0, 60))
    scheduler.submit(first.request, first)
    scheduler.step()
    scheduler.submit(second.request, second)
    with monkeypatch.context() as patch:
        patch.setattr(getattr(made, owner), where, lambda *_: (_ for _ in ()).throw(MemoryError("none left")))
        scheduler.step()
    assert isinstance(second.outcomes[0].error, MemoryError)
    while scheduler.busy:
        scheduler.step()
    assert first.outcomes[0].finish is Finish.LENGTH
    assert scheduler.check_integrity() == []
    assert made.pool.used_blocks == 0


@pytest.mark.parametrize("where", ["settle", "take_rows", "seal", "put_many", "_merge"])
def test_what_was_interrupted_is_done_again_by_the_next_step(
    where: str, engine: Callable[[], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(stops: int) -> list[Ear]:
        made = engine()
        scheduler, left = Scheduler(made), stops
        owner: Any = {"settle": Step, "put_many": made.store}.get(where, Live)
        sound = getattr(owner, where)

        def stopped(*args: Any, **options: Any) -> Any:
            nonlocal left
            if where == "put_many" or left % 2:  # else when it is done
                left -= 1
                raise KeyboardInterrupt
            result = sound(*args, **options)
            if left:
                left -= 1
                raise KeyboardInterrupt
            return result

        ears = [Ear(Request(tuple(TEXT[at : at + 10]), 30, keep=lambda live: list(live.blocks))) for at in (0, 60)]
        for ear in ears:
            scheduler.submit(ear.request, ear)
        while any(len(ear.tokens) < 5 for ear in ears):
            scheduler.step()
        with monkeypatch.context() as patch:
            patch.setattr(owner, where, lambda *args, **options: (stopped if left else sound)(*args, **options))
            while scheduler.busy:
                with suppress(KeyboardInterrupt):
                    scheduler.step()
                for _, place in scheduler.running:
                    assert made.store.missing(place.live.blocks) == []
                    assert len(place.live.blocks) == len(place.live.tokens) // 16
                    assert made.pool.users(place.live.sequence.table[0]) == 1
        assert left == 0
        return ears

    # What comes after a block is stored is not done again: two conversations fill two blocks each.
    well, stopped = run(0), run(4 if where == "_merge" else 6)
    assert [ear.tokens for ear in stopped] == [ear.tokens for ear in well]
    assert [ear.outcomes[0].kept for ear in stopped] == [ear.outcomes[0].kept for ear in well]
    assert len(well[0].tokens) == 30
