"""Conversations longer than the positions of their model: which blocks are chosen, and what the next tokens see."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cyberkv.cybergraph.chain import load_root
from cyberkv.cybergraph.chain import tokens as tokens_of
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import BlockNotFound, DigestMismatch, OutOfRange, Refused
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.nodes import Block
from cyberkv.cybergraph.store import DiskStore
from cyberkv.runtime.canonical import canonical_step
from cyberkv.runtime.checkpoint import checkpoint, resume
from cyberkv.runtime.engine import Engine, build_engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.models.registry import LoadedModel, Registry
from cyberkv.runtime.pool import Pool
from cyberkv.runtime.sampling import Sampling
from cyberkv.runtime.selected import Selected
from cyberkv.runtime.selection import (
    POLICIES,
    RECENT,
    SIMILAR,
    Policy,
    Windows,
    best,
    coldest_first,
    select,
    shared_tokens,
)
from tests.numerics.tiny import tiny_model

SIZE = 16
POSITIONS = 256
WINDOW_BLOCKS = POSITIONS // SIZE
LONG = [(13 * i * i + 11 * i + 5) % 250 for i in range(10 * POSITIONS)]
NUMBERS = st.integers(0, 9)
WINDOWS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=20)


@given(WINDOWS, st.lists(NUMBERS, max_size=4), st.integers(2, 20), st.sampled_from([*POLICIES]))
def test_a_choice_keeps_to_its_budget_and_to_the_newest_and_the_first(
    windows: list[tuple[int, int]], following: list[int], budget: int, name: str
) -> None:
    chosen = select(POLICIES[name], windows, following, budget)
    assert chosen == sorted({*chosen})
    assert len(chosen) == min(budget, len(windows))
    assert {0, len(windows) - 1} <= {*chosen}
    assert chosen == select(POLICIES[name], windows, following, budget)


def test_recent_is_the_first_block_and_the_newest() -> None:
    windows = [(i, i) for i in range(10)]
    assert select(RECENT, windows, (3,), 4) == [0, 7, 8, 9]
    assert select(RECENT, windows, (3,), 1) == [9]


def test_similar_prefers_what_shares_rare_tokens() -> None:
    windows: Windows = [(1, 2), (7, 7), (5, 7), (7, 9), (7, 8), (4, 7), (1, 1), (2, 2), (3, 3)]
    # 9 stands in one window, 7 in five.
    assert select(SIMILAR, windows, (9,), 3) == [0, 3, 8]
    assert select(SIMILAR, windows, (7, 9), 4) == [0, 3, 5, 8]
    assert shared_tokens([(7, 7), (7, 9)], (7, 9)) == [0.5, 1.5]


def test_a_score_of_ones_own_makes_a_policy() -> None:
    """The hook for embeddings: any score of windows against the next tokens."""

    def nearest(windows: Windows, following: Sequence[int]) -> list[float]:
        return [-abs(window[0] - following[0]) for window in windows]

    mine = Policy("nearest", best(nearest))
    assert select(mine, [(i,) for i in range(0, 100, 10)], (42,), 4) == [0, 4, 5, 9]


@pytest.mark.parametrize("chosen", [[0, 1], [], [-1, 4], [0, 1, 2, 4], [3, 9]])
def test_a_policy_that_does_not_keep_the_rules_is_refused(chosen: list[int]) -> None:
    with pytest.raises(Refused) as caught:
        select(Policy("wild", lambda *_: chosen), [(1,)] * 5, (), 3)
    assert caught.value.data["policy"] == "wild"


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
def test_the_coldest_go_first_and_a_pin_wins(blocks: set[int], pinned: set[int]) -> None:
    order = coldest_first(blocks, 31, pinned)
    assert {*order} == blocks - pinned
    assert order == sorted(order)  # the farther from the end, the colder
    # Another measure of coldness turns the order around, and still no pin goes.
    assert coldest_first(blocks, 31, pinned, lambda block, at: block) == order[::-1]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tiny_model("llama", tmp_path_factory.mktemp("short"), max_position_embeddings=POSITIONS)
    registry = Registry(tmp_path_factory.mktemp("models"))
    return registry.load(registry.add(folder, name="short", block_size=SIZE))


@pytest.fixture
def engine(loaded: LoadedModel, tmp_path: Path) -> Iterator[Engine]:
    with DiskStore(tmp_path / "store") as store, Index(tmp_path / "index") as index:
        yield build_engine(loaded, store, index, capacity_tokens=8 * POSITIONS)  # several at once, in some tests


def leaves_of(engine: Engine, blocks: Sequence[Cid]) -> list[Cid]:
    return [leaf for cid in blocks for leaf in Block.decode(engine.store.get(cid)).kv]


class Peak:
    """The most pool rows that were ever in use."""

    def __init__(self, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows = 0
        allocate = pool.allocate

        def watched() -> int:
            row = allocate()
            self.rows = max(self.rows, pool.used_blocks)
            return row

        monkeypatch.setattr(pool, "allocate", watched)


@pytest.mark.parametrize("name", [*POLICIES])
def test_a_chain_ten_times_as_long_as_the_window_stays_within_the_pool(
    name: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    peak = Peak(engine.pool, monkeypatch)
    selected = Selected(engine, POLICIES[name])
    selected.append(LONG[:-40])
    selected.append(LONG[-40:])
    assert selected.tokens == LONG
    assert len(selected.blocks) == 10 * WINDOW_BLOCKS
    assert {*selected.chosen} >= {0}
    answer = list(selected.generate(POSITIONS, Sampling(0.0, 0)))
    assert len(answer) == POSITIONS
    assert peak.rows <= WINDOW_BLOCKS + 1
    root = selected.checkpoint(title="long", created="")
    selected.close()
    assert engine.pool.used_blocks == 0
    node = load_root(engine.store, root)
    assert node.approx == f"selected blocks: {name}"
    assert tokens_of(engine.store, node) == LONG + answer
    assert engine.store.missing(leaves_of(engine, selected.blocks)) == []
    with pytest.raises(OutOfRange) as caught:
        resume(engine, root)
    assert "--select" in caught.value.hint


def test_what_is_gathered_is_what_was_asked_at_neighbouring_positions(engine: Engine) -> None:
    """The next rows are those of the chosen blocks' raw rows put side by side, and of no others."""
    live = Live(engine)
    live.append(LONG[:240])
    exact = checkpoint(live, title="t", created="")
    chosen, following = [0, 4, 9, 14], LONG[300:332]
    selected = Selected.resume(engine, exact, Policy("mine", lambda *_: chosen))
    selected.budget_blocks = len(chosen)
    selected.append(following)
    assert selected.chosen == chosen

    by_hand = engine.new_sequence()
    by_hand.reserve(len(chosen) * SIZE)
    by_hand.table = [engine.pool.retain(live.sequence.table[block]) for block in chosen]
    by_hand.heat_blocks(0, len(chosen))
    by_hand.extend_table(len(chosen) * SIZE + len(following))
    canonical_step(engine.decoder, by_hand, following, len(chosen) * SIZE)
    made = [engine.pool.rows[row] for row in by_hand.table[len(chosen) :]]
    stored = Pool(engine.geometry, 2)
    engine.store.get_into(
        leaves_of(engine, selected.blocks[-2:]), [view for row in (0, 1) for view in stored.leaves(row)]
    )
    assert all(torch.equal(row, stored.rows[at]) for at, row in enumerate(made))
    # Control: over all blocks the same tokens have other rows.
    short = Live(engine)
    short.append(LONG[:224] + following)
    assert not torch.equal(engine.pool.rows[short.sequence.table[14]], stored.rows[0])


def test_a_conversation_goes_on_as_if_it_had_not_been_put_away(engine: Engine) -> None:
    through, root = Selected(engine, RECENT), None
    through.append(LONG[:700])
    first = list(through.generate(20, Sampling(0.0, 0)))
    root = through.checkpoint(title="t", created="")
    through.append(LONG[700:760])
    expected = list(through.generate(20, Sampling(0.0, 0)))
    again = Selected.resume(engine, root, RECENT)
    assert again.tokens == LONG[:700] + first
    again.append(LONG[700:760])
    assert list(again.generate(20, Sampling(0.0, 0))) == expected
    assert again.blocks == through.blocks
    # Control: another policy is another conversation from there on.
    other = Selected.resume(engine, root, SIMILAR)
    other.append(LONG[700:760])
    assert other.blocks[-1] != again.blocks[len(other.blocks) - 1]
    assert other.approx == "selected blocks: recent; selected blocks: similar"
    root = other.checkpoint(title="t", created="")
    for name in (RECENT.name, SIMILAR.name, "é" * 100, "another"):
        policy = Policy(name, RECENT.choose)
        known = other.approx
        other = Selected.resume(engine, root, policy)
        assert other.approx == known or other.approx.endswith(f"; selected blocks: {name}")
        root = other.checkpoint(title="t", created="")
    assert len(other.approx.encode()) <= 256


def test_nothing_of_it_is_found_by_its_text(engine: Engine) -> None:
    selected = Selected(engine, RECENT)
    selected.append(LONG[:400])
    found = [engine.index.domain_of(cid) for cid in selected.blocks]
    assert found == [None] * len(selected.blocks)
    exact = Live(engine)
    exact.append(LONG[:200])
    assert exact.counts.tokens_reused == 0
    assert engine.index.domain_of(exact.blocks[0]) is not None  # control: what is exact is indexed


def test_a_beginning_that_comes_again_is_not_taken_from_the_index(engine: Engine) -> None:
    """The same words as the first block of an exact conversation have other rows where they follow something."""
    exact = Live(engine)
    exact.append(LONG[: 4 * SIZE])
    selected = Selected.resume(engine, checkpoint(exact, title="t", created=""), RECENT)
    selected.append(LONG[500:850])
    before = selected.counts.tokens_reused
    selected.append(LONG[850:862] + LONG[: 4 * SIZE] * 2)
    assert not {*selected.blocks[4:]} & {*exact.blocks}
    assert selected.blocks[:4] == exact.blocks
    assert selected.counts.tokens_reused - before <= selected.budget_blocks * SIZE
    assert selected.counts.tokens_computed >= len(selected.tokens) - 4 * SIZE


def test_resumed_without_new_text_it_generates(engine: Engine) -> None:
    selected = Selected(engine, RECENT)
    selected.append(LONG[:405])
    root = selected.checkpoint(title="t", created="")
    again = Selected.resume(engine, root, RECENT)
    assert len(list(again.generate(12, Sampling(0.0, 0)))) == 12
    assert again.tokens[:405] == LONG[:405]


def test_an_answer_is_not_made_of_less_than_was_selected(engine: Engine) -> None:
    selected = Selected(engine, RECENT)
    selected.append(LONG[:400])
    root = selected.checkpoint(title="t", created="")
    selected.close()
    engine.store.delete_many(leaves_of(engine, selected.blocks[:1]))
    with pytest.raises(BlockNotFound):
        Selected.resume(engine, root, RECENT).append(LONG[400:420])
    assert engine.pool.used_blocks == 0
    # A block that is not selected may be away.
    newest = Policy("newest", lambda windows, _, budget: range(len(windows) - budget, len(windows)))
    rest = Selected.resume(engine, root, newest)
    rest.append(LONG[400:420])


def test_a_damaged_block_is_told(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    selected = Selected(engine, RECENT)
    selected.append(LONG[:400])
    root = selected.checkpoint(title="t", created="")

    def damaged(cids: Sequence[Cid], out: Sequence[memoryview]) -> None:
        raise DigestMismatch("it does not hash to its CID", cid=str(cids[0]))

    monkeypatch.setattr(engine.store, "get_into", damaged)
    with pytest.raises(DigestMismatch):
        Selected.resume(engine, root, RECENT).append([1])


def test_a_live_conversation_is_not_forked(engine: Engine) -> None:
    with pytest.raises(Refused):
        Selected(engine, RECENT).fork(0)


@pytest.mark.parametrize("family", ["mistral", "smollm3"])
def test_models_with_windows_and_without_rotation(
    family: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tiny_model(family, tmp_path / "model", max_position_embeddings=128)
    registry = Registry(tmp_path / "models")
    with DiskStore(tmp_path / "store") as store, Index(tmp_path / "index") as index:
        engine = build_engine(registry.load(registry.add(folder, name="m", block_size=SIZE)), store, index)
        selected = Selected(engine, RECENT)
        selected.append(LONG[:500])
        assert len(list(selected.generate(80, Sampling(0.0, 0)))) == 80
        selected.close()
        assert engine.pool.used_blocks == 0


def test_a_tiny_context_gives_numbers(engine: Engine, tiny_engine: Callable[..., Engine]) -> None:
    """Three tokens and their resume: no score is a NaN, on either way."""
    live = Live(engine)
    live.append([1, 2, 3])
    root = checkpoint(live, title="t", created="")
    assert torch.isfinite(live.next_logits()).all()
    assert torch.equal(resume(engine, root).next_logits(), live.next_logits())
    selected = Selected.resume(engine, root, RECENT)
    [token] = selected.generate(1, Sampling(0.0, 0))
    assert token == int(live.next_logits().argmax())


def test_what_was_computed_over_a_selection_is_not_found_where_its_root_was_never_written(engine: Engine) -> None:
    tokens = [i * 7 % 250 for i in range(3 * POSITIONS)]
    exact = Live(engine)
    exact.append(tokens[: POSITIONS // 2])
    root = checkpoint(exact, title="", created="")
    for live in (Selected.resume(engine, root, RECENT), Selected(engine, RECENT)):  # each killed before `checkpoint`
        live.append(tokens[len(live.tokens) :])
        made = [cid for cid in live.blocks if cid not in exact.blocks]
        live.close()
        engine.index.rebuild(engine.store)
        assert len(made) > len(exact.blocks)
        assert all(engine.index.domain_of(cid) is None for cid in made)
    assert all(engine.index.domain_of(cid) is not None for cid in exact.blocks)  # the control
    exact.close()
