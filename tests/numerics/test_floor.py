"""Where a row alone rounds differently, everything works with steps of 16 rows: provisional ones, swapped later."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cyberkv.runtime.batching.admission import Limits
from cyberkv.runtime.batching.request import Request
from cyberkv.runtime.batching.scheduler import Scheduler
from cyberkv.runtime.canonical import Domain, probe
from cyberkv.runtime.checkpoint import checkpoint, resume
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.models.linear import Matrix
from cyberkv.runtime.sampling import Sampling
from tests.numerics.together import TOKENS, Heard, State, alone, drain

Engines = Callable[..., Engine]
FOUND: dict[str, Domain] = {}


@pytest.fixture
def floored(tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch) -> Engines:
    """Engines in which products with fewer than 16 rows are a little off, as the known-answer test finds."""
    product = Matrix.__call__

    def rounding(self: Matrix, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return product(self, x, bias) * (1.0001 if x.shape[0] < 16 else 1)

    def make(family: str = "llama", home: str = "home") -> Engine:
        engine = tiny_engine(family, home=home)  # first: the sound domain is kept for other tests
        monkeypatch.setattr(Matrix, "__call__", rounding)
        if family not in FOUND:
            FOUND[family] = probe(engine.decoder, engine.processor, engine.geometry)
        engine.domain = FOUND[family]
        return engine

    return make


def test_the_known_answer_test_finds_the_rows_of_a_step(tiny_engine: Engines, floored: Engines) -> None:
    before, found = tiny_engine().domain, floored().domain
    assert (before.floor_rows, before.rows, before.scores_together) == (1, before.name, True)
    assert (found.broken, found.scattered, found.floor_rows) == (None, None, 16)
    assert found.name == before.name
    assert found.rows.startswith(f"{found.name}/1-")


@pytest.mark.parametrize("family", ["llama", "smollm3-window"])
def test_decoded_rows_are_provisional_until_their_block_fills(family: str, floored: Engines) -> None:
    engine, other = floored(family), floored(family, home="other")
    live, whole = Live(engine), Live(other)
    live.append(TOKENS[:246])
    for token in TOKENS[246:270]:
        live.decode(token)
    whole.append(TOKENS[:270])
    assert (live.prefilled, len(live.tail), whole.prefilled) == (0, 14, 14)
    assert live.blocks == whole.blocks
    assert not State.of(live).same(State.of(whole))
    root = checkpoint(live, title="test", created="2026-01-01T00:00:00Z")
    assert State.of(resume(engine, root)).same(State.of(live))
    for token in TOKENS[270:272]:
        live.decode(token)
    whole.append(TOKENS[270:272])
    assert State.of(live).same(State.of(whole))


def test_a_batch_is_canonical_there_too(floored: Engines) -> None:
    engine, oracle = floored(), floored(home="oracle")
    asked = [Request(tuple(TOKENS[at : at + 30 + at]), 20, Sampling(5.0, seed=at), keep=State.of) for at in (0, 220)]
    scheduler, heard = Scheduler(engine, Limits(prefill_tokens=64)), [Heard() for _ in asked]
    for request, ear in zip(asked, heard, strict=True):
        scheduler.submit(request, ear)
    drain(scheduler)
    for request, ear in zip(asked, heard, strict=True):
        chosen, state = alone(oracle, request)
        assert ear.tokens == chosen
        assert isinstance(ear.outcome.kept, State)
        assert ear.outcome.kept.same(state)


def test_rows_that_came_with_a_root_are_computed_before_they_are_sealed(tiny_engine: Engines) -> None:
    engine = tiny_engine()
    live, whole = Live(engine), Live(tiny_engine(home="whole"))
    live.append(TOKENS[:10])
    root = checkpoint(live, title="test", created="2026-01-01T00:00:00Z")
    resumed = resume(engine, root)
    assert resumed.tail_loaded
    row = engine.pool.rows[resumed.sequence.table[0]]
    row[:, :, :10] *= 1.5  # as if somebody had made them up
    resumed.sequence.heat_rows(0, 10)
    for token in TOKENS[10:16]:
        resumed.decode(token)
        if len(resumed.tokens) == 12:
            assert not torch.equal(resumed.next_logits(), alone(whole.engine, Request(tuple(TOKENS[:12]), 0))[1].logits)
    whole.append(TOKENS[:16])
    assert State.of(resumed).same(State.of(whole))
    assert not resumed.tail_loaded


def test_a_tail_of_another_kind_of_domain_is_computed_anew(tiny_engine: Engines) -> None:
    engine, other = tiny_engine(), tiny_engine(home="other")
    other.domain = replace(engine.domain, floor_rows=16, rows=f"{engine.domain.name}/1-00000000")
    live = Live(other)
    live.append(TOKENS[:20])
    live.decode(TOKENS[20])
    assert live.prefilled == 4 < len(live.tail)
    root = checkpoint(live, title="test", created="2026-01-01T00:00:00Z")
    other.domain = engine.domain
    resumed = resume(other, root)
    assert (resumed.prefilled, resumed.tail_loaded) == (5, False)
    live = Live(engine)
    live.append(TOKENS[:21])
    assert State.of(resumed).same(State.of(live))
