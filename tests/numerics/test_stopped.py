"""Stopped or out of room in the middle, a conversation is as before or as after: its tail is not lost on the way."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch

from cyberkv.cybergraph.errors import TierFull
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.hot import HotMemory
from cyberkv.runtime.live import Live
from cyberkv.runtime.sampling import Sampling
from cyberkv.runtime.steps.speculation import speculate
from tests.numerics.together import TOKENS, State

Engines = Callable[..., Engine]
PLACES = ("canonical_step", "name_blocks", "put_many", "attend", "take")
ERRORS = (KeyboardInterrupt, MemoryError, TierFull)


def with_provisional_tail(engine: Engine, prompt: int = 250, decoded: int = 4) -> Live:
    """As where 16 rows are needed: the tail has canonical rows, and behind them provisional ones.

    The next rows go beyond a panel.
    """
    engine.domain = replace(engine.domain, floor_rows=16)
    live = Live(engine)
    live.append(TOKENS[:prompt])
    for token in TOKENS[prompt : prompt + decoded]:
        live.decode(token)
    return live


def broken(patch: pytest.MonkeyPatch, engine: Engine, live: Live, place: str, error: type[BaseException]) -> None:
    """Have one place raise from now on; `attend` in the last layer, where rows of the others are written."""

    def failing(*_: Any, **__: Any) -> Any:
        raise error("made to fail")

    if place in ("canonical_step", "name_blocks"):
        patch.setattr(f"cyberkv.runtime.appending.{place}", failing)
    elif place == "attend":
        attend, last = live.sequence.attend, engine.config.num_layers - 1
        patch.setattr(live.sequence, place, lambda layer, *rest: (failing if layer == last else attend)(layer, *rest))
    else:
        owner: Any = {"put_many": engine.store, "take": engine.memory}[place]
        patch.setattr(owner, place, failing)


@pytest.mark.parametrize("family", ["llama", "smollm3-window"])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("place", [*PLACES, "full pool"])
def test_an_append_that_fails_leaves_the_tail_as_it_was(
    place: str, error: type[BaseException], family: str, tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine(family)
    live = with_provisional_tail(engine)
    before, held = State.of(live), list[int]()
    if place == "full pool":
        error = TierFull
        with suppress(TierFull):
            while True:
                held.append(engine.pool.allocate())
    else:
        broken(monkeypatch, engine, live, place, error)
    used, counts = engine.pool.used_blocks, live.counts.tokens_computed
    with pytest.raises(error):
        live.append(TOKENS[254:300])
    monkeypatch.undo()
    assert State.of(live).same(before)
    assert (engine.pool.used_blocks, live.counts.tokens_computed) == (used, counts)
    assert engine.pool.check_integrity() == engine.residency.check_integrity() == []
    for row in held:
        engine.pool.release(row)
    live.append(TOKENS[254:300])
    whole = Live(tiny_engine(family, home="whole"))
    whole.append(TOKENS[:300])
    assert State.of(live).same(State.of(whole))
    assert not State.of(live).same(before)
    assert live.counts.tokens_computed == 300


@pytest.mark.parametrize("error", ERRORS)
def test_a_draft_that_fails_before_it_began_leaves_the_tail_as_it_was(
    error: type[BaseException], tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine()
    live = with_provisional_tail(engine)
    before = State.of(live)
    broken(monkeypatch, engine, live, "canonical_step", error)
    with pytest.raises(error):
        next(speculate(live, 4, Sampling(), frozenset(), lambda _: []))
    monkeypatch.undo()
    assert State.of(live).same(before)
    answer = list(speculate(live, 4, Sampling(), frozenset(), lambda _: []))
    whole = Live(tiny_engine(home="whole"))
    whole.append(live.tokens)
    assert State.of(live).same(State.of(whole))
    assert len(answer) == 4


def test_rotated_copies_stay_within_their_limit(tiny_engine: Engines) -> None:
    engine = tiny_engine("smollm3-window")
    engine.memory = memory = HotMemory(engine.config, torch.float32)
    one = memory.copy_bytes(512)
    memory.limit_bytes = 2 * one
    first, second = Live(engine), Live(engine)
    first.append(TOKENS[:400])
    second.append(TOKENS[:400])
    assert memory.bytes == 2 * one == first.sequence.live_bytes + second.sequence.live_bytes
    third = Live(engine)
    with pytest.raises(TierFull, match="rotated copies"):
        third.append(TOKENS[400:500])
    assert engine.pool.check_integrity() == []
    second.close()
    third.append(TOKENS[400:500])
    assert memory.bytes <= memory.limit_bytes
    # What grows is let grow to what it needs where it may not double, and not beyond.
    with pytest.raises(TierFull):
        first.append(TOKENS[400:1100])
    assert first.tokens == TOKENS[:400]
    third.close()
    memory.limit_bytes = memory.copy_bytes(512) + memory.copy_bytes(768)
    first.append(TOKENS[400:740])
    whole = Live(tiny_engine("smollm3-window", home="whole"))
    whole.append(TOKENS[:740])
    assert State.of(first).same(State.of(whole))
    # The bound of an engine follows from its pool.
    rows = 2 * 4128 + 16 * 256
    assert whole.engine.memory.limit_bytes == rows * engine.config.num_layers * 2 * 2 * engine.config.head_dim * 4
