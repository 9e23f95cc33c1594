"""Load or compute: known blocks are loaded, unless the first of them show that the rest is computed faster."""

from collections.abc import Callable, Sequence

import pytest
import torch

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.store.base import Store
from cyberkv.cybergraph.store.wrap import WrapperStore
from cyberkv.runtime.checkpoint import checkpoint, resume
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.pace import Pace

SIZE = 16
TOKENS = [(13 * i * i + 11 * i + 5) % 250 for i in range(200)]
BLOCKS, TAIL = divmod(len(TOKENS), SIZE)
FIRST = 3
LOAD_BYTES_S = 1e6


class Slow(WrapperStore):
    """Takes time for each byte that is loaded, on a clock of its own."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.now_s = 0.0
        self.loaded_bytes = 0

    def clock_s(self) -> float:
        return self.now_s

    def get_into(self, cids: Sequence[Cid], out: Sequence[memoryview]) -> None:
        super().get_into(cids, out)
        size_bytes = sum(target.nbytes for target in out)
        self.loaded_bytes += size_bytes
        self.now_s += size_bytes / LOAD_BYTES_S


@pytest.fixture
def engine(tiny_engine: Callable[..., Engine]) -> Engine:
    """An engine whose home knows `TOKENS`, over a slow store."""
    engine = tiny_engine()
    recorded = Live(engine)
    recorded.append(TOKENS)
    recorded.close()
    engine.store = Slow(engine.store)
    return engine


def paced(engine: Engine, prefill_tokens_s: float | None) -> Slow:
    store = engine.store
    assert isinstance(store, Slow)
    engine.residency.reset()  # as in another process: what is in the pool costs nothing
    engine.pace = Pace(store.clock_s, prefill_tokens_s, probe_bytes=FIRST * engine.geometry.block_bytes)
    return store


def break_even(engine: Engine) -> float:
    """The speed of a prefill that takes as long as loading."""
    return LOAD_BYTES_S * SIZE / engine.geometry.block_bytes


@pytest.mark.parametrize(
    ("speed", "loaded"), [(None, BLOCKS), (0.5, BLOCKS), (1.99, BLOCKS), (2.01, FIRST), (50, FIRST)]
)
def test_the_faster_way_is_taken_and_counted(engine: Engine, speed: float | None, loaded: int) -> None:
    store = paced(engine, speed and speed * break_even(engine))
    live = Live(engine)
    live.append(TOKENS)
    assert live.counts.tokens_reused == loaded * SIZE
    assert live.counts.tokens_computed == len(TOKENS) - loaded * SIZE
    assert store.loaded_bytes == loaded * engine.geometry.block_bytes
    if loaded == BLOCKS:
        assert live.counts.misses == []
    else:
        [miss] = live.counts.misses
        assert (miss.position_start, miss.cid) == (FIRST * SIZE, str(live.blocks[FIRST]))
        assert "times as long as computing" in miss.reason


def test_both_ways_give_the_same_blocks_and_scores(engine: Engine) -> None:
    paced(engine, 0.5 * break_even(engine))
    loaded = Live(engine)
    loaded.append(TOKENS)
    paced(engine, 3 * break_even(engine))
    computed = Live(engine)
    computed.append(TOKENS)
    assert computed.counts.tokens_reused < loaded.counts.tokens_reused
    assert computed.blocks == loaded.blocks
    assert torch.equal(computed.next_logits(), loaded.next_logits())
    assert engine.index.divergences() == []


def test_a_run_no_longer_than_the_first_blocks_is_loaded(engine: Engine) -> None:
    paced(engine, 50 * break_even(engine))
    for blocks in (1, FIRST, FIRST + 1):
        engine.residency.reset()
        live = Live(engine)
        live.append(TOKENS[: blocks * SIZE])
        assert live.counts.tokens_reused == min(blocks, FIRST) * SIZE
        assert len(live.counts.misses) == (blocks > FIRST)


def test_a_resume_loads_what_its_root_names(engine: Engine) -> None:
    live = Live(engine)
    live.append(TOKENS)
    root = checkpoint(live, title="", created="")
    paced(engine, 50 * break_even(engine))
    again = resume(engine, root)
    assert (again.counts.tokens_reused, again.counts.misses) == (len(TOKENS), [])


def test_a_load_that_fails_at_first_is_not_weighed(engine: Engine) -> None:
    store = paced(engine, 50 * break_even(engine))
    live = Live(engine)
    live.append(TOKENS)
    [lost] = [cid for cid in engine.store.cids() if cid == live.blocks[1]]
    store.delete_many([lost])
    engine.residency.reset()
    again = Live(engine)
    again.append(TOKENS)
    assert [miss.cid for miss in again.counts.misses] == [str(lost)]
    assert again.counts.tokens_reused == SIZE


def test_a_prefill_that_is_long_enough_is_measured(tiny_engine: Callable[..., Engine]) -> None:
    engine, seconds = tiny_engine(), iter(range(100))
    engine.pace = Pace(lambda: float(next(seconds)), least_tokens=100)
    Live(engine).append(TOKENS[:99])
    assert engine.pace.prefill_tokens_s is None
    # The first 96 tokens are known: what is measured is what was computed.
    Live(engine).append(TOKENS[:196])
    assert engine.pace.prefill_tokens_s == 100.0
