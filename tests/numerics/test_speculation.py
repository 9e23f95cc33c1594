"""Drafts change how fast an answer comes, and nothing else: not a token, not a byte, not a hash."""

from collections.abc import Callable
from collections.abc import Sequence as Tokens
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cyberkv.cybergraph.errors import TierFull
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import DiskStore
from cyberkv.runtime.batching.request import Request
from cyberkv.runtime.engine import Engine, build_engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.models.registry import Registry, smollm2_source
from cyberkv.runtime.sampling import Sampling
from cyberkv.runtime.steps import step as step_module
from cyberkv.runtime.steps.drafting import PromptLookup
from tests.numerics.together import TOKENS, State, alone

Engines = Callable[..., Engine]
GREEDY, DRAWN = Sampling(), Sampling(5.0, seed=3)
ASKED = Request(tuple(TOKENS[:246]), max_tokens=24)
"""Its answer fills blocks and goes beyond a panel."""


def nothing(_: Tokens[int]) -> list[int]:
    return []


class Oracle:
    """Guesses what is right, up to `right` tokens, and then `wrong` ones that are not."""

    def __init__(self, text: list[int], right: int, wrong: int) -> None:
        self.text, self.right, self.wrong = text, right, wrong

    def __call__(self, tokens: Tokens[int]) -> list[int]:
        at = len(tokens)
        wrong = self.text[at + self.right :][: self.wrong]
        return self.text[at : at + self.right] + [(token + 1) % 250 for token in wrong]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each shared step."""
    rows: list[int] = []
    run = step_module.Step.run

    def counted(step: step_module.Step) -> Any:
        rows.append(sum(len(span.tokens) for span in step.seated))
        return run(step)

    monkeypatch.setattr(step_module.Step, "run", counted)
    return rows


def spoken(engine: Engine, drafter: Any, sampling: Sampling = GREEDY) -> tuple[list[int], State]:
    live = Live(engine)
    live.append(ASKED.tokens)
    answer = list(live.generate(ASKED.max_tokens, sampling, drafter=drafter))
    state = State.of(live)
    live.close()
    return answer, state


@pytest.mark.parametrize(
    ("family", "right", "wrong", "sampling"),
    [
        ("llama", 0, 1, DRAWN), ("llama", 0, 15, GREEDY), ("llama", 1, 3, DRAWN), ("llama", 15, 0, GREEDY),
        ("llama", 15, 0, DRAWN), ("mistral", 4, 4, DRAWN), ("smollm3-window", 4, 4, GREEDY),
    ],
)  # fmt: skip
def test_the_answer_does_not_depend_on_the_draft(
    family: str, right: int, wrong: int, sampling: Sampling, tiny_engine: Engines, steps: list[int]
) -> None:
    expected, state = alone(tiny_engine(family, home="oracle"), replace(ASKED, sampling=sampling))
    steps.clear()
    drafter = Oracle([*ASKED.tokens, *expected], right, wrong)
    answer, after = spoken(tiny_engine(family), drafter, sampling)
    assert answer == expected
    assert after.same(state)
    assert len(steps) <= ASKED.max_tokens / (right + 1) + 4
    assert max(steps) > 1
    assert not spoken(tiny_engine(family, home="other"), drafter, Sampling(5.0, seed=4))[1].same(state)


@pytest.mark.parametrize("wrong", [1, 4, 15])
def test_what_is_rejected_leaves_nothing(wrong: int, tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine()
    live = Live(engine)
    live.append(TOKENS[:230])
    expected, _ = alone(tiny_engine(home="oracle"), Request(tuple(TOKENS[:230]), max_tokens=12))
    hashed: list[Any] = []
    monkeypatch.setattr("cyberkv.runtime.appending.name_blocks", lambda *parts: hashed.append(parts))
    stored, used = set(engine.store.cids()), engine.pool.used_blocks
    hot = [each.clone() for each in live.sequence.keys_values(0, 0, 230)]
    spare = [row for row in range(engine.pool.capacity_blocks) if row not in live.sequence.table]
    untouched = engine.pool.rows[torch.tensor(spare)].clone()
    # Right on nothing, up to the end of a block, beyond which the guesses reach.
    text = live.generate(9, Sampling(), drafter=Oracle([*TOKENS[:230], *expected], 0, wrong))
    assert [next(text) for _ in range(9)] == expected[:9]
    assert engine.pool.used_blocks == used
    assert torch.equal(engine.pool.rows[torch.tensor(spare)], untouched)
    assert all(torch.equal(a, b) for a, b in zip(live.sequence.keys_values(0, 0, 230), hot, strict=True))
    text.close()
    assert (len(live.tokens), live.counts.tokens_computed, live.prefilled) == (239, 239, 15)
    assert set(engine.store.cids()) == stored
    assert hashed == []
    monkeypatch.undo()
    plain = Live(tiny_engine(home="plain"))
    plain.append([*TOKENS[:230], *expected[:9]])
    assert State.of(live).same(State.of(plain))
    for part, whole in zip(live.sequence.keys_values(0, 0, 239), plain.sequence.keys_values(0, 0, 239), strict=True):
        assert torch.equal(part[:, :239], whole[:, :239])


def test_who_stops_listening_has_what_was_given(tiny_engine: Engines) -> None:
    expected, _ = alone(tiny_engine(home="oracle"), Request(tuple(TOKENS[:230]), max_tokens=40))
    engine = tiny_engine()
    live = Live(engine)
    live.append(TOKENS[:230])
    text = live.generate(40, Sampling(), drafter=Oracle([*TOKENS[:230], *expected], 15, 0))
    given = [next(text) for _ in range(13)]
    text.close()
    assert live.tokens == [*TOKENS[:230], *given]
    _, state = alone(tiny_engine(home="other"), Request(tuple(live.tokens), max_tokens=0))
    assert State.of(live).same(state)


def test_a_stop_token_inside_a_draft_ends_the_answer(tiny_engine: Engines) -> None:
    expected, _ = alone(tiny_engine(home="oracle"), Request(tuple(TOKENS[:230]), max_tokens=40))
    stop = expected[20]
    live = Live(tiny_engine())
    live.append(TOKENS[:230])
    drafter = Oracle([*TOKENS[:230], *expected], 15, 0)
    assert list(live.generate(40, Sampling(), frozenset({stop}), drafter)) == expected[: expected.index(stop)]
    assert live.tokens == [*TOKENS[:230], *expected[: expected.index(stop)]]


def test_a_drafter_may_guess_anything(tiny_engine: Engines) -> None:
    expected, state = alone(tiny_engine(home="oracle"), ASKED)
    for number, drafter in enumerate((nothing, lambda _: [10**9, -1], lambda tokens: [5] * 99, PromptLookup())):
        answer, after = spoken(tiny_engine(home=str(number)), drafter)
        assert answer == expected
        assert after.same(state)


def test_a_write_that_fails_takes_back_the_row_that_filled_the_block(
    tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine()
    live = Live(engine)
    live.append(TOKENS[:230])
    expected, _ = alone(tiny_engine(home="oracle"), Request(tuple(TOKENS[:230]), max_tokens=40))
    monkeypatch.setattr(engine.store, "put_many", lambda *_, **__: (_ for _ in ()).throw(TierFull("no space left")))
    given = []
    with pytest.raises(TierFull):
        given.extend(live.generate(40, Sampling(), drafter=Oracle([*TOKENS[:230], *expected], 15, 0)))
    monkeypatch.undo()
    assert len(live.tokens) == 239
    assert list(live.generate(31, Sampling(), drafter=nothing)) == expected[9:]


def test_prompt_lookup_takes_the_latest_of_the_longest() -> None:
    lookup = PromptLookup(longest=3, shortest=2, most=3)
    assert lookup([1, 2, 3, 7, 1, 2, 3, 8, 9, 1, 2, 3]) == [8, 9, 1]
    assert lookup([4, 2, 3, 7, 5, 5, 1, 2, 3]) == [7, 5, 5]
    assert lookup([1, 2, 3, 4]) == []
    assert lookup([]) == []
    assert PromptLookup(reach_tokens=4)([1, 2, 3, 4, 5, 6, 1, 2]) == []


@pytest.mark.slow
def test_the_real_model_answers_alike_with_and_without_drafts(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "models")
    loaded = registry.load(registry.add(smollm2_source(), name="smollm2"))
    asked = Request(tuple(TOKENS[:24] * 10), max_tokens=40)
    with (
        DiskStore(tmp_path / "a") as one, Index(tmp_path / "ai") as first,
        DiskStore(tmp_path / "b") as two, Index(tmp_path / "bi") as second,
    ):  # fmt: skip
        engine, oracle = build_engine(loaded, one, first), build_engine(loaded, two, second)
        assert engine.domain.scattered is None
        for sampling in (GREEDY, Sampling(1.0, seed=3)):
            expected, state = alone(oracle, replace(asked, sampling=sampling))
            live = Live(engine)
            live.append(asked.tokens)
            assert list(live.generate(40, sampling, drafter=PromptLookup())) == expected
            assert State.of(live).same(state)
            assert live.counts.tokens_drafted > live.counts.tokens_accepted > 0
            live.close()
