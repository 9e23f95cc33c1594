"""Reuse counted: where sharing comes from, that the counters add up, and that sharing is per model."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cyberkv.benchmarks.reuse_plots import draw
from cyberkv.benchmarks.reuse_replay import WORKLOADS as REPLAYED
from cyberkv.benchmarks.reuse_tables import TABLES, markdown, run, share, spoilt
from cyberkv.cybergraph.chain import closure
from cyberkv.cybergraph.errors import MalformedNode
from cyberkv.cybergraph.nodes import Model
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


PAGE = Path(__file__).parents[2] / "docs"
LONG_TABLES = {"resent", "edits"}
"""Hundreds of requests of a long conversation: seconds each."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG_TABLES else []) for name in TABLES]
)
def test_the_page_has_what_the_command_prints(name: str) -> None:
    table = markdown(TABLES[name]())
    assert table in (PAGE / "reuse.md").read_text()
    assert table.count("\n") >= 4


@pytest.mark.slow
def test_the_plots_are_those_of_the_command(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    once, again = draw(tmp_path / "once"), draw(tmp_path / "again")
    assert [path.read_bytes() for path in once] == [path.read_bytes() for path in again]
    # Another release of matplotlib lays lines out otherwise; the names and the words stay.
    for path in once:
        words = set(re.findall(r"<text[^>]*>([^<]+)<", path.read_text()))
        assert words == set(re.findall(r"<text[^>]*>([^<]+)<", (PAGE / "img" / path.name).read_text()))
        assert len(words) > 5


@pytest.mark.parametrize("name", REPLAYED)
def test_workloads_find_between_half_and_nearly_all_of_their_tokens(name: str) -> None:
    requests = REPLAYED[name]()
    assert 0.5 < share(run(requests)) < 0.99
    assert share(run(spoilt(requests))) == 0  # control


@pytest.mark.parametrize("known_tokens", [0, 15, 16, 160, 290, 299])
def test_what_is_wanted_is_exact_to_the_byte_and_gives_what_the_whole_gives(
    known_tokens: int, tiny_engine: Engines
) -> None:
    whole = text(5, 300)
    sender, receiver, full = (tiny_engine(home=home) for home in ("sender", "receiver", "full"))
    live = Live(sender)
    live.append(whole)
    root = checkpoint(live, title="t", created="")
    if known_tokens:
        known = Live(receiver)
        known.append(whole[:known_tokens])
        known.close()
    needed = list(closure(sender.store, root))
    wanted = receiver.store.missing(needed)
    leaf_bytes = sum(sender.store.size_bytes(cid) or 0 for cid in wanted if cid.codec == "raw")
    geometry = sender.geometry
    missing_blocks = len(whole) // SIZE - known_tokens // SIZE
    assert leaf_bytes == missing_blocks * geometry.block_bytes + len(whole) % SIZE * geometry.bytes_per_token
    for engine, cids in ((receiver, wanted), (full, needed)):
        engine.store.put_many((cid, sender.store.get(cid)) for cid in cids)
    logits = [resume(engine, root).next_logits() for engine in (sender, receiver, full)]
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


def test_another_encoding_is_another_name_and_an_unknown_one_has_none(tiny_engine: Engines) -> None:
    """Another element type or scheme is another identity; an unknown scheme is refused by name, in both directions."""
    model = tiny_engine().model
    others = replace(model, kv_dtype="bf16"), replace(model, kv_quant_scheme="int8/row/f32")
    assert len({each.cid() for each in (model, *others)}) == 3
    with pytest.raises(MalformedNode, match="kv_quant_scheme"):
        replace(model, kv_quant_scheme="int8-channel").cid()
    data = model.encode()
    field = b"kv_quant_scheme" + b"\x64none"
    assert data.count(field) == 1
    with pytest.raises(MalformedNode, match="kv_quant_scheme"):
        Model.decode(data.replace(field, b"kv_quant_scheme" + b"\x64int8"))
    assert Model.decode(data) == model  # control
