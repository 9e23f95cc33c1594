"""Loads that fail between the hit and the read, again and again: each is one miss, and nothing is used up."""

import os
from collections.abc import Callable, Sequence

import pytest
import torch

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.nodes import Block
from cyberkv.cybergraph.store import DiskStore, MemoryStore
from cyberkv.cybergraph.store.wrap import WrapperStore
from cyberkv.runtime.checkpoint import checkpoint, resume
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.live import Live

TRIES = pytest.mark.parametrize("tries", [24, pytest.param(100, marks=pytest.mark.slow)])
TOKENS = [(13 * i * i + 11 * i + 5) % 250 for i in range(100)]
CONTROL = [(7 * i * i + 3 * i + 1) % 250 for i in range(40)]
Spoil = Callable[[MemoryStore, Cid], None]


def lose(store: MemoryStore, leaf: Cid) -> None:
    store.delete_many([leaf])


def corrupt(store: MemoryStore, leaf: Cid) -> None:
    store._blocks[leaf] = bytes([store.get(leaf)[0] ^ 1]) + store.get(leaf)[1:]


class Failing(WrapperStore):
    """Spoils one leaf after it was found and before it is read, if it is asked for."""

    def __init__(self, inner: MemoryStore, spoil: Spoil) -> None:
        super().__init__(inner)
        self.memory = inner
        self.spoil = spoil
        self.target: Cid | None = None

    def get_into(self, cids: Sequence[Cid], out: Sequence[memoryview]) -> None:
        if self.target in cids and self.has(self.target):
            self.spoil(self.memory, self.target)
        super().get_into(cids, out)


@pytest.fixture(params=[lose, corrupt])
def failing(request: pytest.FixtureRequest) -> Failing:
    return Failing(MemoryStore(), request.param)


@pytest.fixture
def engine(tiny_engine: Callable[..., Engine], failing: Failing) -> Engine:
    engine = tiny_engine()
    engine.store = failing
    engine.store.put_node(engine.model)
    return engine


def started(engine: Engine, tokens: list[int]) -> Live:
    live = Live(engine)
    live.append(tokens)
    return live


@TRIES
def test_a_load_that_keeps_failing_uses_nothing_up(tries: int, engine: Engine, failing: Failing) -> None:
    recorded = started(engine, TOKENS)
    leaf = Block.decode(failing.get(recorded.blocks[2])).kv[0]
    sound = failing.get(leaf)
    before = engine.pool.used_blocks
    live = Live(engine)
    for _ in range(tries):
        failing.memory._blocks[leaf] = sound  # as if somebody had healed it, in time for the next lookup only
        failing.target = leaf
        engine.residency.reset()  # as in another process: what is in the pool is not loaded
        live.adopt(recorded.blocks[len(live.blocks) :], TOKENS[live.boundary :])
        assert (live.blocks, live.tokens) == (recorded.blocks[:2], TOKENS[:32])
        assert len(live.sequence.table) == 2
        assert engine.pool.used_blocks == before + 2
        assert [miss.position_start for miss in live.counts.misses] == [32]
        assert (live.counts.tokens_reused, live.counts.tokens_computed, live.counts.blocks_new) == (0, 0, 0)
    failing.memory._blocks[leaf], failing.target = sound, None
    engine.residency.reset()
    live.adopt(recorded.blocks[2:], TOKENS[32:])
    assert live.blocks == recorded.blocks
    live.append(TOKENS[96:])
    assert torch.equal(live.next_logits(), recorded.next_logits())


@TRIES
def test_each_failed_load_is_one_miss_and_the_answer_is_the_same(tries: int, engine: Engine, failing: Failing) -> None:
    recorded = started(engine, TOKENS)
    root = checkpoint(recorded, title="", created="")
    expected, control = recorded.next_logits(), started(engine, CONTROL).next_logits()
    leaves = [Block.decode(failing.get(cid)).kv[0] for cid in recorded.blocks]
    before, stored = engine.pool.used_blocks, set(failing.cids())
    for attempt in range(tries):
        round_number, at = divmod(attempt, len(leaves))
        is_resumed = round_number % 2 == 1
        failing.target = leaves[at]
        engine.residency.reset()
        live = resume(engine, root) if is_resumed else started(engine, TOKENS)
        failing.target = None
        assert [miss.position_start for miss in live.counts.misses] == [16 * at]
        tail = 4 if is_resumed else 0  # only a root has rows of the tail
        assert (live.counts.tokens_reused, live.counts.tokens_computed) == (16 * at + tail, 100 - 16 * at - tail)
        assert live.blocks == recorded.blocks
        assert torch.equal(live.next_logits(), expected)
        live.close()
        assert engine.pool.used_blocks == before
        assert set(failing.cids()) == stored
    again = started(engine, CONTROL)
    assert again.counts.misses == []
    assert torch.equal(again.next_logits(), control)
    assert not torch.equal(control, expected)


def test_what_cannot_be_read_just_now_is_missed_and_stays(tiny_engine: Callable[..., Engine]) -> None:
    engine = tiny_engine()
    live = started(engine, TOKENS)
    leaf = Block.decode(engine.store.get(live.blocks[2])).kv[0]
    assert isinstance(engine.store, DiskStore)
    [place] = engine.store.places([leaf])
    assert place is not None
    slab = engine.store.path / place.slab.file_name
    data = slab.read_bytes()
    os.truncate(slab, place.offset + 10)
    engine.residency.reset()
    again = Live(engine)
    again.adopt(live.blocks, TOKENS[:96])
    assert [miss.position_start for miss in again.counts.misses] == [32]
    assert "cut short" in again.counts.misses[0].reason
    slab.write_bytes(data)
    whole = Live(engine)
    whole.adopt(live.blocks, TOKENS[:96])
    assert (whole.counts.misses, whole.blocks) == ([], live.blocks)
    with slab.open("r+b") as file:  # the control: bytes that are there and wrong go
        file.seek(place.offset)
        file.write(bytes([data[place.offset] ^ 1]))
    engine.residency.reset()
    Live(engine).adopt(live.blocks, TOKENS[:96])
    assert engine.store.places([leaf]) == [None]
