"""Requests that wait find their blocks in host memory: which ones, within the budget, and never at a cost of bytes."""

from collections.abc import Callable, Iterable
from threading import enumerate as threads

import pytest

from cyberkv.cybergraph.chain import block_cids, load_root
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.verdict import Tier
from cyberkv.runtime.batching.admission import Limits
from cyberkv.runtime.batching.front import Front
from cyberkv.runtime.batching.request import Request
from cyberkv.runtime.batching.scheduler import Scheduler
from cyberkv.runtime.checkpoint import checkpoint, resume
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.pool import Pool
from cyberkv.runtime.tiers import Move
from tests.numerics.together import TOKENS, Heard, State

Engines = Callable[..., Engine]
L0, L1, L2 = Tier.L0, Tier.L1, Tier.L2
OTHER = (*TOKENS[600:700], 3)
KNOWN = tuple(TOKENS[:330])
WAIT_S = 60


def record(engine: Engine) -> Cid:
    live = Live(engine)
    live.append(KNOWN)
    root = checkpoint(live, title="", created="")
    live.close()
    return root


def serve(engine: Engine, waiting: Request) -> tuple[Scheduler, Heard]:
    """Answer one request, and then `waiting`, which has come meanwhile, after its blocks had time to come."""
    scheduler, heard = Scheduler(engine, Limits(running=1)), Heard()
    scheduler.submit(Request(OTHER, max_tokens=4), Heard())
    scheduler.step()
    scheduler.submit(waiting, heard)
    scheduler.step()
    if scheduler.ahead:
        assert scheduler.ahead._prefetcher.idle(WAIT_S)
    while scheduler.busy:
        scheduler.step()
        assert scheduler.check_integrity() == []
    if scheduler.ahead:
        scheduler.ahead.close()
    return scheduler, heard


def moved(moves: Iterable[Move], source: Tier, target: Tier) -> list[Cid]:
    return [move.cid for move in moves if (move.source, move.target) == (source, target)]


@pytest.mark.parametrize("way", ["tokens", "root"])
def test_blocks_of_a_waiting_request_come_into_use_from_host_memory(tiny_engine: Engines, way: str) -> None:
    root = record(tiny_engine())
    waiting = Request(KNOWN, max_tokens=4, keep=State.of)
    if way == "root":
        waiting = Request(
            (1, 2, 3), max_tokens=4, keep=State.of, open=lambda engine: resume(engine, root),
            blocks=lambda engine: list(block_cids(engine.store, load_root(engine.store, root))),
        )  # fmt: skip
    plain, ahead = tiny_engine(), tiny_engine()
    ahead.host_bytes = 64 * ahead.pool.geometry.block_bytes
    off, heard_off = serve(plain, waiting)
    on, heard_on = serve(ahead, waiting)
    blocks = list(block_cids(ahead.store, load_root(ahead.store, root)))
    assert off.ahead is None
    assert moved(plain.residency.log.moves, L2, L0) == blocks  # the control
    assert moved(ahead.residency.log.moves, L2, L1) == moved(ahead.residency.log.moves, L1, L0) == blocks
    assert not {*blocks} & {*moved(ahead.residency.log.moves, L2, L0)}
    assert {each.tier for each in heard_on.outcome.counts.executed if each.cid in blocks} == {L1}
    assert on.ahead is not None
    tally, block_bytes = on.ahead.tally, ahead.pool.geometry.block_bytes
    assert (tally.hits, tally.wasted, tally.waiting) == (len(blocks), 0, 0)
    assert (tally.brought_bytes, tally.used_bytes) == (len(blocks) * block_bytes, len(blocks) * block_bytes)
    kept = heard_on.outcome.kept, heard_off.outcome.kept
    assert isinstance(kept[0], State)
    assert isinstance(kept[1], State)
    assert kept[0].same(kept[1])
    assert heard_on.tokens == heard_off.tokens


@pytest.mark.parametrize("host_blocks", [1, 2, 6, 64])
def test_the_budget_is_never_passed(tiny_engine: Engines, host_blocks: int) -> None:
    record(tiny_engine())
    engine = tiny_engine()
    block_bytes = engine.pool.geometry.block_bytes
    engine.host_bytes = host_blocks * block_bytes
    scheduler, heard = serve(engine, Request(KNOWN, max_tokens=4))
    assert scheduler.ahead is not None
    assert scheduler.ahead.budget_bytes == engine.host_bytes // 2
    waiting, held, most = set[Cid](), set[Cid](), 0
    for move in engine.residency.log.moves:
        held -= {move.cid} if move.source is L1 else set()
        waiting -= {move.cid} if move.source is L1 else set()
        held |= {move.cid} if move.target is L1 else set()
        waiting |= {move.cid} if (move.source, move.target) == (L2, L1) else set()
        assert len(held) <= host_blocks
        assert len(waiting) <= host_blocks // 2
        most = max(most, len(waiting))
    assert most == min(host_blocks // 2, len(KNOWN) // 16)  # the control: as far as it goes, it is used
    assert heard.outcome.counts.tokens_reused == len(KNOWN) // 16 * 16


@pytest.mark.parametrize(("host_blocks", "tier"), [(64, L1), (0, L2)])
def test_who_was_put_out_of_the_pool_comes_back_from_host_memory(
    tiny_engine: Engines, host_blocks: int, tier: Tier
) -> None:
    engine = tiny_engine()
    engine.pool = Pool(engine.geometry, 20)
    engine.host_bytes = host_blocks * engine.pool.geometry.block_bytes
    scheduler, heard = Scheduler(engine), [Heard(), Heard()]
    for ear, tokens in zip(heard, (TOKENS[:130], TOKENS[400:530]), strict=True):
        scheduler.submit(Request(tuple(tokens), max_tokens=60), ear)
    while scheduler.busy:
        scheduler.step()
        if scheduler.ahead and scheduler.ahead._walks:
            assert scheduler.ahead._prefetcher.idle(WAIT_S)
    if scheduler.ahead:
        scheduler.ahead.close()
    assert [ear.outcome.preempted > 0 for ear in heard] == [False, True]
    lower = {each.tier for each in heard[1].outcome.counts.executed if each.tier in (L1, L2)}
    assert lower == {tier}  # others of its blocks have kept their rows meanwhile


def test_who_goes_while_waiting_leaves_nothing_behind(tiny_engine: Engines) -> None:
    record(tiny_engine())
    engine = tiny_engine()
    engine.host_bytes = 64 * engine.pool.geometry.block_bytes
    scheduler, heard = Scheduler(engine, Limits(running=1)), Heard()
    scheduler.submit(Request(OTHER, max_tokens=4), Heard())
    scheduler.step()
    number = scheduler.submit(Request(KNOWN, max_tokens=4), heard)
    scheduler.step()
    assert scheduler.ahead is not None
    assert scheduler.ahead._prefetcher.idle(WAIT_S)
    scheduler.cancel(number)
    while scheduler.busy:
        scheduler.step()
    assert scheduler.ahead._walks == {}
    tally = scheduler.ahead.tally
    assert (tally.hits, tally.wasted, tally.waiting) == (0, len(KNOWN) // 16, 0)
    scheduler.ahead.close()


def test_a_front_has_a_thread_for_it_only_where_there_is_memory_and_somebody_waits(tiny_engine: Engines) -> None:
    record(tiny_engine())
    for host_blocks in (0, 64):
        engine = tiny_engine()
        engine.host_bytes = host_blocks * engine.pool.geometry.block_bytes
        with Front(engine, Limits(running=1)) as front:
            tickets = [front.submit(Request(tuple(tokens), max_tokens=8)) for tokens in (OTHER, KNOWN)]
            for ticket in tickets:
                assert ticket.outcome(WAIT_S).error is None
            assert ("prefetch" in {thread.name for thread in threads()}) == bool(host_blocks)
        assert "prefetch" not in {thread.name for thread in threads()}
