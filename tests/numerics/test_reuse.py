"""Reuse counted: where sharing comes from, that the counters add up, and that sharing is per model."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cyberkv.runtime.checkpoint import checkpoint, resume
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.live import Live

SIZE = 16
Engines = Callable[..., Engine]


def text(seed: int, tokens: int) -> list[int]:
    return [(seed * 37 + 13 * i * i + 11 * i) % 250 for i in range(tokens)]


SYSTEM, DOCUMENT, TOOLS = text(1, 100), text(2, 150), text(3, 70)


def turn(seed: int) -> list[int]:
    return text(100 + seed, 20)


WORKLOADS: dict[str, list[list[int]]] = {
    "system prompt": [SYSTEM + turn(i) for i in range(4)],
    "document as prefix": [SYSTEM + DOCUMENT + turn(i) for i in range(3)],
    "document after different text": [turn(i) + DOCUMENT for i in range(3)],
    "boilerplate": [TOOLS + SYSTEM + turn(i) for i in range(3)],
    "forks": [SYSTEM + turn(0)[:cut] + turn(9) for cut in (4, 12, 20)],
    "resumption": [SYSTEM, SYSTEM + turn(0), SYSTEM + turn(0) + turn(1)],
}


def distinct_blocks(prompts: list[list[int]]) -> int:
    """Oracle: a block is its window and everything before it."""
    return len({tuple(p[: end + SIZE]) for p in prompts for end in range(0, len(p) - SIZE + 1, SIZE)})


@pytest.mark.parametrize("source", WORKLOADS)
def test_stored_blocks_are_the_distinct_ones(source: str, tiny_engine: Engines) -> None:
    engine, prompts = tiny_engine(), WORKLOADS[source]
    new = 0
    for prompt in prompts:
        live = Live(engine)
        live.append(prompt)
        new += live.counts.blocks_new
        assert live.counts.tokens_reused + live.counts.tokens_computed == len(prompt)
        live.close()
    without = sum(len(prompt) // SIZE for prompt in prompts)
    assert new == distinct_blocks(prompts)
    if source == "document after different text":
        assert new == without  # the same document elsewhere shares nothing: its K and V depend on what stands before
    else:
        assert new < without


@settings(max_examples=25)
@given(
    work=st.lists(
        st.tuples(st.sampled_from(["append", "decode", "resume", "fork"]), st.integers(1, 40)), min_size=1, max_size=8
    )
)
def test_counters_add_up_after_any_work(work: list[tuple[str, int]], shared_engine: Engine) -> None:
    live = Live(shared_engine)
    live.append(text(len(work), 30))
    base = 0
    for operation, amount in work:
        if operation == "append":
            live.append(text(amount, amount))
        elif operation == "decode":
            for token in text(amount, amount % 7):
                live.decode(token)
        elif operation == "resume":
            root = checkpoint(live, title="t", created="")
            live.close()
            live, base = resume(shared_engine, root), 0
        else:
            cut = min(amount, len(live.tokens))
            parent, live = live, live.fork(cut)
            parent.close()
            base = cut  # a fork shares rows in memory: nothing was loaded or computed for them
        counts = live.counts
        assert base + counts.tokens_reused + counts.tokens_computed == len(live.tokens)
        assert counts.misses == []
        assert len(live.blocks) == len(live.tokens) // SIZE
    live.close()
    assert shared_engine.pool.used_blocks == 0


def test_a_changed_weight_shares_nothing_and_answers_as_a_cold_run(tiny_engine: Engines) -> None:
    first = Live(tiny_engine("llama"))
    first.append(SYSTEM)
    other = Live(tiny_engine("llama-untied"))
    other.append(SYSTEM)
    assert other.counts.tokens_reused == 0
    cold = Live(tiny_engine("llama-untied", home="cold"))
    cold.append(SYSTEM)
    assert torch.equal(other.next_logits(), cold.next_logits())
    assert not set(first.blocks) & set(other.blocks)
