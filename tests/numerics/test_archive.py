"""Windows and the archive: live rows are bounded, blocks that aged leave the pool, and nothing is lost."""

import pytest
import torch
from torch import Tensor

from cyberkv.cybergraph import chain
from cyberkv.cybergraph.errors import BlockNotFound, TierFull
from cyberkv.cybergraph.keeping.fsck import fsck
from cyberkv.cybergraph.nodes import Block
from cyberkv.cybergraph.verdict import Tier
from cyberkv.runtime.checkpoint import resume
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.pool import Pool
from cyberkv.runtime.rings import window
from cyberkv.runtime.rings.archive import bring_back
from cyberkv.runtime.rope import Rotary
from cyberkv.runtime.rows import ARCHIVED
from cyberkv.runtime.sealing import Sealed, Sealer
from tests.numerics.full_copy import SIZE, TOKENS, WINDOW, Engines, decode, record, started

pytestmark = pytest.mark.usefixtures("poisoned_planes")


@pytest.mark.parametrize(
    ("family", "at"), [*(("mistral", at) for at in (0, 5, 16, 100, 301, 496, 599, 600)), ("qwen2-window", 301)]
)
def test_a_fork_anywhere_goes_on_as_if_alone(family: str, at: int, tight: None, tiny_engine: Engines) -> None:
    engine = tiny_engine(family)
    live = started(engine, TOKENS[:600])
    child = live.fork(at)
    child.append([3, 1, 4])
    straight = started(tiny_engine(family, home="straight"), [*TOKENS[:at], 3, 1, 4], full=True)
    assert torch.equal(child.next_logits(), straight.next_logits())
    live.decode(7)
    assert torch.equal(live.next_logits(), _after(tiny_engine(family, home="whole"), TOKENS[:600], 7))
    child.close()
    live.close()
    assert engine.pool.used_blocks == 0


def _after(engine: Engine, tokens: list[int], token: int) -> Tensor:
    live = started(engine, tokens, full=True)
    live.decode(token)
    return live.next_logits()


def test_memory_of_windows_is_bounded(tiny_engine: Engines) -> None:
    held: dict[str, list[int]] = {}
    for family in ("mistral", "qwen2-window", "llama"):
        engine = tiny_engine(family)
        live = Live(engine)
        for start in range(0, 2000, 500):
            live.append(TOKENS[start : start + 500])
            held.setdefault(family, []).append(live.sequence.live_bytes)
        if family == "qwen2-window":
            assert live.sequence._rings.bytes == 2 * 2 * 2 * 16 * 4 * (WINDOW + window.SLACK_ROWS)
        live.close()
    assert len({*held["mistral"]}) == 1
    row = 2 * 2 * 16 * 4  # K and V of 2 heads of 16 floats
    assert held["mistral"][-1] == 3 * row * (WINDOW + window.SLACK_ROWS)
    assert held["llama"][-1] > 2 * held["llama"][0]
    # One full layer grows, two rings stay.
    grown = (held["qwen2-window"][-1] - held["qwen2-window"][0]) / (held["llama"][-1] - held["llama"][0])
    assert grown == pytest.approx(1 / 3)


def test_a_resume_heats_only_what_windows_see(tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine("qwen2-window")
    live = started(engine, TOKENS[:800])
    root, expected = record(live), live.next_logits()
    turned: list[int] = []
    rotate = Rotary.rotate

    def counted(self: Rotary, rows: Tensor, start: int) -> Tensor:
        turned.append(rows.shape[0])
        return rotate(self, rows, start)

    monkeypatch.setattr(Rotary, "rotate", counted)
    again = resume(engine, root)
    seen = WINDOW - 1 + 16  # and what is repeated for the next scores
    assert sorted(turned) == [seen, seen, 800]
    assert [again.sequence.stage(block, 800) for block in (0, 47, 48, 49)] == ["aged", "aged", "live", "live"]
    assert torch.equal(again.next_logits(), expected)


def test_blocks_that_no_window_sees_leave_the_pool_and_stay_readable(
    tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cyberkv.runtime.appending.CHUNK_TOKENS", 64)
    engine = tiny_engine("mistral")
    engine.pool = Pool(engine.geometry, 20)
    live, most = Live(engine), 0
    for start in range(0, 1500, 300):
        live.append(TOKENS[start : start + 280])
        decode(TOKENS[start + 280 : start + 300])(live)
        most = max(most, engine.pool.used_blocks)
    assert len(live.blocks) == 1500 // SIZE > 4 * 20
    assert most <= 4
    stages = [live.sequence.stage(block, len(live.tokens)) for block in range(len(live.blocks))]
    assert stages == ["archived"] * 91 + ["aged", "live"]

    root = record(live)
    steps = list(chain.walk(engine.store, chain.load_root(engine.store, root)))
    assert [token for step in steps for token in step.block.tokens] == live.tokens[: live.boundary]
    assert engine.store.missing([leaf for step in steps for leaf in step.block.kv]) == []
    again = resume(engine, root)
    assert again.counts.tokens_reused == 1500
    assert torch.equal(again.next_logits(), live.next_logits())
    assert again.blocks == started(tiny_engine("mistral", home="full"), live.tokens, full=True).blocks
    assert list(fsck(engine.store, engine.index)) == []

    control = tiny_engine("qwen2-window", home="control")  # its first layer sees everything
    control.pool = Pool(control.geometry, 20)
    with pytest.raises(TierFull):
        started(control, TOKENS[:400])


@pytest.mark.parametrize("waits", [False, True])
def test_an_archived_block_comes_back_from_memory_where_it_is_still_there(
    waits: bool, tight: None, tiny_engine: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its row was given back when all was computed, or before: when it `waits`, chunks are stored at once."""
    engine, store = tiny_engine("mistral"), Sealer.store

    def store_now(sealer: Sealer, sealed: Sealed) -> None:
        store(sealer, sealed)
        sealer.wait()

    if waits:
        monkeypatch.setattr("cyberkv.runtime.appending.CHUNK_TOKENS", 64)
        monkeypatch.setattr(Sealer, "store", store_now)
    live = started(engine, TOKENS[:400])
    engine.store.delete_many(Block.decode(engine.store.get(live.blocks[3])).kv)
    read_bytes = engine.residency.log.read_bytes(Tier.L2)
    assert live.sequence.table[3] == ARCHIVED
    fork = live.fork(4 * SIZE)
    assert engine.residency.log.read_bytes(Tier.L2) == read_bytes
    assert torch.equal(fork.next_logits(), started(engine, TOKENS[: 4 * SIZE]).next_logits())


def test_of_several_archived_runs_all_come_back_or_none(tight: None, tiny_engine: Engines) -> None:
    engine = tiny_engine("mistral")
    live = started(engine, TOKENS[:400])
    table = list(live.sequence.table)
    bring_back(engine.residency, table, live.blocks, 3, 4)  # so that two runs are left, around it
    mine = table[3]
    engine.store.delete_many(Block.decode(engine.store.get(live.blocks[6])).kv)
    engine.residency.reset()
    before, used = list(table), engine.pool.used_blocks
    with pytest.raises(BlockNotFound):
        bring_back(engine.residency, table, live.blocks, 0, 8)
    assert (table, engine.pool.used_blocks) == (before, used)
    bring_back(engine.residency, table, live.blocks, 0, 6)  # the control
    assert ARCHIVED not in table[:6]
    assert (table[3], engine.pool.used_blocks) == (mine, used + 5)


def test_an_archived_block_that_is_gone_is_a_miss_and_heals(tight: None, tiny_engine: Engines) -> None:
    engine = tiny_engine("mistral")
    live = started(engine, TOKENS[:400])
    root, expected = record(live), live.next_logits()
    step = list(chain.walk(engine.store, chain.load_root(engine.store, root)))[3]
    engine.store.delete_many(step.block.kv)
    engine.residency.reset()
    used = engine.pool.used_blocks
    with pytest.raises(BlockNotFound):
        live.fork(4 * SIZE)
    assert engine.pool.used_blocks == used
    assert torch.equal(live.fork(390).next_logits(), started(engine, TOKENS[:390]).next_logits())
    again = resume(engine, root)
    assert engine.store.missing(step.block.kv) == []
    assert torch.equal(again.next_logits(), expected)
    assert again.blocks == live.blocks
