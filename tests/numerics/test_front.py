"""The scheduler for callers: what is refused, where an answer ends, and many threads at one front."""

from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest

from cyberkv.cybergraph.errors import OutOfRange, Refused, TierFull
from cyberkv.runtime.batching.admission import Limits
from cyberkv.runtime.batching.front import Front, Ticket
from cyberkv.runtime.batching.request import Finish, Outcome, Request
from cyberkv.runtime.batching.scheduler import Scheduler
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.pool import Pool
from cyberkv.runtime.reuse import Counts
from cyberkv.runtime.sampling import Sampling
from cyberkv.runtime.steps.drafting import PromptLookup
from tests.numerics.together import TOKENS, Heard, State, alone, drain

Engines = Callable[..., Engine]


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


def test_who_hears_of_the_end_finds_the_outcome(tiny_engine: Engines) -> None:
    with Front(tiny_engine()) as front:
        ended, found = Outcome(Finish.LENGTH, (1,), 2, Counts()), list[Outcome]()
        told = Ticket(front, lambda _: found.append(told.outcome(0)))
        told.tell(ended)

        class Asking:
            def put(self, _: object) -> None:
                found.append(iterated.outcome(0))

        iterated = Ticket(front, None)
        iterated._events = Asking()  # type: ignore[assignment]
        iterated.tell(ended)
        assert found == [ended, ended]
        with pytest.raises(TimeoutError):
            Ticket(front, None).outcome(0)


def test_what_breaks_every_step_fails_every_request(tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine()

    def gone(*_: Any) -> bool:
        raise OSError("the index went away")

    monkeypatch.setattr("cyberkv.runtime.batching.roster.room_for", gone)
    with Front(engine) as front:
        tickets = [front.submit(Request(tuple(TOKENS[:30]), max_tokens=1900)) for _ in range(2)]
        for ticket in tickets:
            assert isinstance(ticket.outcome(60).error, OSError)
        monkeypatch.undo()
        assert len(list(front.submit(Request(tuple(TOKENS[:30]), max_tokens=3)))) == 3
    assert engine.pool.used_blocks == 0
