"""Laws of looking ahead: the plan against a plain oracle, a link in virtual time, and the thread that walks."""

from collections.abc import Callable
from threading import Event
from threading import enumerate as threads
from time import monotonic, sleep

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import PeerUnreachable
from cyberkv.cybergraph.store.wrap import CountingStore
from cyberkv.cybergraph.verdict import Tier
from cyberkv.runtime.models.config_layers import LayerKind
from cyberkv.runtime.prefetch import Head, Prefetcher, plan
from cyberkv.runtime.prefetch.link import Link, simulate
from cyberkv.runtime.prefetch.order import need_order
from tests.laws.shelves import BLOCK_BYTES, Home, Remote, content

NAMES = [Cid.of(bytes([at]), "dag-cbor", "sha2-256") for at in range(12)]
CHAINS = st.lists(st.lists(st.integers(0, 11), unique=True, max_size=8), max_size=4)
HEADS = CHAINS.flatmap(
    lambda chains: st.tuples(*(st.builds(lambda c, at, n: Head(tuple(NAMES[i] for i in c), at, n), st.just(chain),
                                         st.integers(0, 8), st.integers(0, 3)) for chain in chains))
)  # fmt: skip


@given(heads=HEADS, most=st.integers(0, 12), used=st.sets(st.sampled_from(NAMES)), ahead=st.none() | st.integers(0, 5))
def test_the_plan_is_the_nearest_blocks_once_each(
    heads: tuple[Head, ...], most: int, used: set[Cid], ahead: int | None
) -> None:
    """Oracle: walk all heads in step, a block of each in turn, and note what was not met before."""
    planned = plan(heads, most_blocks=most, block_size=4, in_use=used, ahead_blocks=ahead)
    met: dict[Cid, int] = {}
    for step in range(9 if ahead is None else ahead):
        for head in heads:
            if head.at + step < len(head.blocks):
                met.setdefault(head.blocks[head.at + step], 4 * step)
    expected = {cid: distance for cid, distance in met.items() if cid not in used}
    assert len({want.cid for want in planned}) == len(planned) == min(most, len(expected))
    assert [want.distance_tokens for want in planned] == sorted(expected.values())[:most]
    for want in planned:
        assert expected[want.cid] == want.distance_tokens
        assert heads[want.head].blocks[want.index] == want.cid


@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4), most=st.integers(0, 30))
def test_no_head_is_looked_ahead_of_further_than_another(lengths: list[int], most: int) -> None:
    made = iter(Cid.of(bytes([at]), "raw", "blake3") for at in range(40))
    heads = [Head(tuple(next(made) for _ in range(length))) for length in lengths]
    planned = plan(heads, most_blocks=most)
    shares = [sum(want.head == number for want in planned) for number in range(len(heads))]
    for share, length in zip(shares, lengths, strict=True):
        assert share == length or share >= max(shares) - 1


def test_of_equally_near_heads_the_one_that_was_served_least_goes_first() -> None:
    heads = [Head(tuple(NAMES[:3]), served=2), Head(tuple(NAMES[3:6]), served=1)]
    assert [want.head for want in plan(heads, most_blocks=4)] == [1, 0, 1, 0]
    assert [want.head for want in plan([replaced(heads[0], 0), heads[1]], most_blocks=4)] == [0, 1, 0, 1]


def replaced(head: Head, served: int) -> Head:
    return Head(head.blocks, head.at, served)


LINK = Link(latency_s=0.02, bytes_s=25e6, block_bytes=250_000)
LONG = [Cid.of(at.to_bytes(2), "raw", "blake3") for at in range(400)]


def test_a_block_of_64_kib_takes_five_milliseconds_over_100_mbit_s() -> None:
    assert Link(latency_s=0.0, bytes_s=12_500_000, block_bytes=65_536).block_s == 0.00524288
    assert Link(latency_s=0.001, bytes_s=12_500_000, block_bytes=65_536).block_s == 0.00624288


def test_stalls_end_with_enough_blocks_ahead() -> None:
    """30 ms a block over the link, 40 ms to compute one: only the first is waited for."""
    stalls = [
        simulate([LONG[:50]], LINK, compute_s=0.04, ahead_blocks=ahead, most_blocks=16).stall_s for ahead in (0, 1, 8)
    ]
    assert stalls == pytest.approx([50 * 0.03, 0.03, 0.03])
    slow = simulate([LONG[:50]], LINK, compute_s=0.02, ahead_blocks=8, most_blocks=16)
    assert slow.stall_s == pytest.approx(50 * 0.03 - 49 * 0.02)  # the link is the limit: no plan does better
    # Uneven work: 8 blocks are read at once every so often, and as many have to be here then.
    steps = [
        simulate([LONG[:48]], LINK, compute_s=lambda at: 0.32 * (at % 8 == 7), ahead_blocks=n, most_blocks=16).stall_s
        for n in range(10)
    ]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] == pytest.approx(48 * 0.03)
    assert steps[0] > steps[2] > steps[4] > steps[8] == pytest.approx(8 * 0.03)  # the first eight, nobody knew of


def test_heads_share_a_slow_link() -> None:
    for heads in (2, 3, 5):
        chains = [LONG[at * 40 : at * 40 + 40] for at in range(heads)]
        run = simulate(chains, LINK, compute_s=0.001, ahead_blocks=8, most_blocks=2 * heads)
        assert run.served == (40,) * heads
        stopped = simulate(chains, LINK, compute_s=0.001, ahead_blocks=8, most_blocks=2 * heads, stops=[10] * heads)
        assert max(stopped.served) - min(stopped.served) <= 1
        assert stopped.most_held_blocks <= 2 * heads


def test_what_heads_share_moves_once() -> None:
    beams = [LONG[:20] + LONG[at : at + 5] for at in (100, 200, 300)]
    run = simulate(beams, LINK, compute_s=0.04, ahead_blocks=4, most_blocks=8)
    assert (run.moved_blocks, run.unused_blocks) == (35, 0)


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=3), ahead=st.integers(0, 6), most=st.integers(0, 6),
    compute_s=st.sampled_from([0.001, 0.03, 0.1]), stop=st.integers(0, 12),
)  # fmt: skip
def test_the_budget_holds_and_waste_is_what_nobody_came_to(
    lengths: list[int], ahead: int, most: int, compute_s: float, stop: int
) -> None:
    chains = [LONG[20 * at : 20 * at + length] for at, length in enumerate(lengths)]
    stops = [min(stop, length) for length in lengths]
    run = simulate(chains, LINK, compute_s=compute_s, ahead_blocks=ahead, most_blocks=most, stops=stops)
    assert run.most_held_blocks <= most
    assert run.moved_blocks == sum(stops) + run.unused_blocks
    never = simulate(chains, LINK, compute_s=compute_s, ahead_blocks=0, most_blocks=most, stops=stops)
    assert never.unused_blocks == 0
    if len(chains) == 1:
        assert run.stall_s <= never.stall_s + 1e-9


@given(
    kinds=st.lists(st.none() | st.integers(1, 100), min_size=1, max_size=6), blocks=st.integers(0, 9),
    per_leaf=st.integers(1, 6), first=st.integers(0, 9),
)  # fmt: skip
def test_every_leaf_is_ordered_once_and_every_read_one_is_needed(
    kinds: list[int | None], blocks: int, per_leaf: int, first: int
) -> None:
    """Oracle: which positions the next row of each layer reads, one by one."""
    order = need_order(
        [LayerKind(window=window) for window in kinds], blocks, block_size=4, layers_per_leaf=per_leaf, first=first
    )
    places = [place for stage in (*order.needed, order.unread) for place in stage]
    groups = -(-len(kinds) // per_leaf)
    assert sorted(places) == [(block, group) for block in range(first, blocks) for group in range(groups)]
    for layer, window in enumerate(kinds):
        for position in range(0 if window is None else max(0, 4 * blocks - window + 1), 4 * blocks):
            if position // 4 >= first:
                assert (position // 4, layer // per_leaf) in order.needed[layer // per_leaf]
    for group, stage in enumerate(order.needed):
        assert {place[1] for place in stage} <= {group}


def settle(is_so: Callable[[], bool]) -> None:
    until_s = monotonic() + 20
    while not is_so():
        assert monotonic() < until_s
        sleep(0.001)


def walking() -> list[object]:
    return [each for each in threads() if each.name == "prefetch"]


@pytest.mark.parametrize("from_peer", [False, True])
def test_it_warms_host_memory_and_ensure_reads_nothing_more(from_peer: bool) -> None:
    home = Home(6)
    remote, store = Remote(Home(6).store), CountingStore(home.store)
    if from_peer:
        for cid in home.blocks:
            home.drop(cid)
    residency = home.residency(6, store, host_bytes=6 * BLOCK_BYTES, sources=[remote], may_ask=lambda _: True)
    with Prefetcher(residency, budget_bytes=6 * BLOCK_BYTES) as prefetcher, prefetcher.walk(home.blocks) as walk:
        assert prefetcher.idle(20)
        settle(lambda: prefetcher.tally.waiting == 6)
        assert [residency.tier_of(cid) for cid in home.blocks] == [Tier.L1] * 6
        assert residency.pool.used_blocks == residency.pool.kept_blocks == 0
        before, asked = store.counts["bytes_got"], len(remote.asked)
        with residency.ensure(home.blocks, home.tokens) as lease:
            assert lease.tiers == [Tier.L1] * 6
            assert [content(residency.pool, row) for row in lease.rows] == list(home.bytes.values())
        assert (store.counts["bytes_got"], len(remote.asked)) == (before, asked)
        walk.advance(4)
        assert (prefetcher.tally.hits, prefetcher.tally.waiting, prefetcher.tally.wasted) == (4, 2, 0)
    assert (prefetcher.tally.hits, prefetcher.tally.waiting, prefetcher.tally.wasted) == (4, 0, 2)
    assert prefetcher.tally.wasted_bytes == 2 * BLOCK_BYTES
    assert prefetcher.tally.brought_bytes == 6 * BLOCK_BYTES
    assert walking() == []
    assert residency.check_integrity() == []


def test_the_budget_is_never_passed_and_room_comes_by_reading() -> None:
    home = Home(10)
    residency = home.residency(10, host_bytes=6 * BLOCK_BYTES)
    with Prefetcher(residency, budget_bytes=3 * BLOCK_BYTES) as prefetcher, prefetcher.walk(home.blocks) as walk:
        for at in range(10):
            assert prefetcher.idle(20)
            settle(lambda: prefetcher.tally.waiting == min(3, 10 - at))  # noqa: B023
            assert residency.shelf.used_host_bytes <= 3 * BLOCK_BYTES
            with residency.ensure(home.blocks[at : at + 1], prev=home.prev(at)) as lease:
                assert lease.tiers == [Tier.L1]
                walk.advance(at + 1)
        assert (prefetcher.tally.hits, prefetcher.tally.wasted) == (10, 0)
    none = home.residency(4)
    with Prefetcher(none, budget_bytes=99 * BLOCK_BYTES) as idle, idle.walk(home.blocks):  # no host memory to warm
        assert idle.idle(20)
        assert idle.tally.brought_bytes == 0


def test_a_block_that_moves_between_two_looks_does_not_end_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(3)
    residency = home.residency(3, host_bytes=6 * BLOCK_BYTES)
    tier_of, looks = residency.shelf.tier_of, iter([None, None, Tier.L0, Tier.L0])
    monkeypatch.setattr(residency.shelf, "tier_of", lambda cid: next(looks, tier_of(cid)))
    with Prefetcher(residency) as prefetcher, prefetcher.walk(home.blocks[:1]):
        settle(lambda: prefetcher.tally.waiting == 1)
        assert len(walking()) == 1


def test_an_error_of_one_block_does_not_end_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(3)
    residency = home.residency(3, host_bytes=6 * BLOCK_BYTES)
    warm = residency.warm

    def broken(cid: Cid, prev: Cid | None) -> bool:
        if cid == home.blocks[0]:
            raise RuntimeError("nobody foresaw it")
        return warm(cid, prev)

    monkeypatch.setattr(residency, "warm", broken)
    with Prefetcher(residency) as prefetcher, prefetcher.walk(home.blocks):
        settle(lambda: prefetcher.tally.waiting == 2)
        assert [residency.tier_of(cid) for cid in home.blocks] == [None, Tier.L1, Tier.L1]


def test_a_block_under_way_is_waited_for_and_loaded_once() -> None:
    home = Home(3)
    remote, under_way, go_on = Remote(Home(3).store), Event(), Event()
    for cid in home.blocks:
        home.drop(cid)
    residency = home.residency(3, host_bytes=3 * BLOCK_BYTES, sources=[remote], may_ask=lambda _: True)

    def before() -> None:
        under_way.set()
        go_on.wait(120)

    remote.before = before
    with Prefetcher(residency, budget_bytes=3 * BLOCK_BYTES) as prefetcher:
        with prefetcher.walk(home.blocks):
            assert under_way.wait(120)
            go_on.set()
            with residency.ensure(home.blocks, home.tokens) as lease:
                assert lease.miss is None
        assert prefetcher.tally.waiting == 0
    assert len(remote.asked) == len(set(remote.asked)) == 3 * 3
    assert residency.check_integrity() == []


@pytest.mark.parametrize("after", range(7))
def test_cancelled_at_any_step_nothing_is_held(after: int) -> None:
    """Each block is asked for in three parts: node and two leaves, of which the leaves come one by one."""
    home = Home(2)
    remote, calls, reached, go_on = Remote(Home(2).store), list[int](), Event(), Event()
    for cid in home.blocks:
        home.drop(cid)

    def before() -> None:
        calls.append(1)
        if len(calls) > after:
            reached.set()
            go_on.wait(120)

    remote.before = before
    residency = home.residency(2, host_bytes=2 * BLOCK_BYTES, sources=[remote], may_ask=lambda _: True)
    prefetcher = Prefetcher(residency, budget_bytes=2 * BLOCK_BYTES)
    walk = prefetcher.walk(home.blocks)
    if after < 6:
        assert reached.wait(120)
    walk.close()
    walk.close()
    go_on.set()
    prefetcher.close()
    assert walking() == []
    assert (residency.pool.used_blocks, residency.check_integrity()) == (0, [])
    assert prefetcher.tally.waiting == 0
    remote.before = lambda: None
    with residency.ensure(home.blocks, home.tokens) as lease:  # and nothing is in the way of anybody
        assert lease.miss is None


def test_what_cannot_be_had_is_not_asked_for_again_and_again() -> None:
    home = Home(3)
    remote = Remote(Home(3).store)
    home.drop(home.blocks[1])

    def before() -> None:
        raise PeerUnreachable("gone")

    remote.before = before
    residency = home.residency(3, host_bytes=3 * BLOCK_BYTES, sources=[remote], may_ask=lambda _: True)
    with Prefetcher(residency, budget_bytes=3 * BLOCK_BYTES) as prefetcher, prefetcher.walk(home.blocks):
        settle(lambda: prefetcher.tally.waiting == 2)
        assert prefetcher.idle(20)
        asked = len(remote.asked)
        remote.before = lambda: None
        assert [residency.tier_of(cid) for cid in home.blocks] == [Tier.L1, None, Tier.L1]
        with prefetcher.walk(home.blocks):  # another head tries again
            settle(lambda: prefetcher.tally.waiting == 3)
        assert len(remote.asked) > asked == 1


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 8)), max_size=12))
@settings(max_examples=30, deadline=None)
def test_each_block_that_was_brought_is_a_hit_wasted_or_waiting(moves: list[tuple[int, int]]) -> None:
    home = Home(8)
    residency = home.residency(8, host_bytes=4 * BLOCK_BYTES)
    with Prefetcher(residency, budget_bytes=2 * BLOCK_BYTES) as prefetcher:
        walks = [prefetcher.walk(home.blocks[first:], prev=home.prev(first)) for first in (0, 2, 4)]
        for head, at in moves:
            if at == 8:
                walks[head].close()
            else:
                walks[head].advance(at)
            tally = prefetcher.tally
            assert tally.waiting * BLOCK_BYTES <= prefetcher.budget_bytes
        assert prefetcher.idle(20)
        for walk in walks:
            walk.close()
    tally = prefetcher.tally
    assert tally.waiting == 0
    assert tally.brought_bytes == residency.log.bytes[Tier.L2, Tier.L1]
    assert residency.shelf.used_host_bytes <= 4 * BLOCK_BYTES
