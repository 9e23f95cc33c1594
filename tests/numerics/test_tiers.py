"""Tiers at work: the way up from each, with hops that count once, what peers are asked, and what a warm run reads."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from cyberkv.cybergraph.cid import Buffer, Cid
from cyberkv.cybergraph.errors import BlockNotFound, DigestMismatch, PeerUnreachable, TierFull
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.store.wrap import CountingStore, WrapperStore
from cyberkv.cybergraph.verdict import Tier, Verdict
from cyberkv.runtime.tiers import Lease, Move, Outcome, Residency
from cyberkv.runtime.tiers.measure import measure
from tests.laws.pools import pools_at_length  # noqa: F401 - the fixture
from tests.laws.shelves import BLOCK_BYTES, Home, Remote, content

pytestmark = pytest.mark.usefixtures("pools_at_length")
L0, L1, L2, L3 = Tier
WAYS: dict[Tier, dict[tuple[Tier, Tier], int]] = {
    L0: {}, L1: {(L1, L0): 1}, L2: {(L2, L0): 1}, L3: {(L3, L2): 1, (L2, L0): 1},
}  # fmt: skip


def settled(home: Home, tier: Tier, **options: Any) -> tuple[Residency, Remote]:
    """Give a residency in which the first block is in one tier alone."""
    remote = Remote(Home(len(home.blocks)).store)
    residency = home.residency(3, host_bytes=2 * BLOCK_BYTES, sources=[remote], may_ask=lambda _: True, **options)
    if tier in (L0, L1):
        residency.ensure(home.blocks[:1]).close()
    if tier is L1:
        residency.shelf.evict()
    if tier is L3:
        home.drop(home.blocks[0])
    return residency, remote


@pytest.mark.parametrize("tier", Tier)
def test_each_hop_on_the_way_up_counts_once(tier: Tier) -> None:
    home = Home(1)
    residency, remote = settled(home, tier)
    before = residency.log.blocks.copy()
    with residency.ensure(home.blocks, home.tokens) as lease:
        assert lease.tiers == [tier]
        assert content(residency.pool, lease.rows[0]) == home.bytes[home.blocks[0]]
        assert residency.tier_of(home.blocks[0]) is L0
    assert residency.log.blocks - before == WAYS[tier]
    for (source, target), count in WAYS[tier].items():
        assert residency.log.bytes[source, target] == count * BLOCK_BYTES
    assert bool(remote.asked) == (tier is L3)
    assert residency.check_integrity() == []
    residency.ensure(home.blocks, home.tokens).close()  # and then nothing moves any more
    assert residency.log.blocks - before == WAYS[tier]


@pytest.mark.parametrize("tier", [L0, L1])
def test_a_warm_run_reads_nothing_below(tier: Tier) -> None:
    home = Home(4)
    store, remote = CountingStore(home.store), Remote(home.store)
    residency = home.residency(4, store, host_bytes=4 * BLOCK_BYTES, sources=[remote], may_ask=lambda _: True)
    residency.ensure(home.blocks, home.tokens).close()
    cold_bytes = store.counts["bytes_got"]
    while tier is L1 and residency.shelf.evict():
        pass
    store.counts.clear()
    with residency.ensure(home.blocks, home.tokens) as lease:
        assert lease.tiers == [tier] * 4
        assert [content(residency.pool, row) for row in lease.rows] == list(home.bytes.values())
    assert (store.counts, remote.asked) == ({}, [])
    assert cold_bytes >= 4 * BLOCK_BYTES  # the control


@pytest.mark.parametrize("part", ["node", "leaf", "all"])
def test_what_the_store_lacks_comes_from_a_peer_and_stays(part: str) -> None:
    home = Home(3)
    residency, remote = settled(home, L2)
    cid = home.blocks[1]
    lost = {"node": [cid], "leaf": [home.nodes[cid].kv[1]], "all": [cid, *home.nodes[cid].kv]}[part]
    home.store.delete_many(lost)
    with residency.ensure(home.blocks) as lease:
        assert [content(residency.pool, row) for row in lease.rows] == list(home.bytes.values())
    assert (set(remote.asked), home.store.missing(lost)) == (set(lost), [])
    with home.residency(3).ensure(home.blocks) as again:  # another process
        assert again.miss is None


def test_a_private_block_is_not_named_to_a_peer() -> None:
    home = Home(3)
    remote, public = Remote(Home(3).store), home.blocks[0]
    residency = home.residency(3, sources=[remote], may_ask=lambda cid: cid == public)
    for cid in home.blocks:
        home.drop(cid)
    lease = residency.ensure(home.blocks)
    assert lease.cids == [public]
    assert lease.miss is not None
    assert lease.miss.cid == str(home.blocks[1])
    assert set(remote.asked) == {public, *home.nodes[public].kv}
    lease.close()
    unasked = Remote(Home(3).store)  # by default nothing may be named
    assert home.residency(3, sources=[unasked]).ensure(home.blocks[1:], prev=public).miss is not None
    assert unasked.asked == []


class Failing(Remote):
    """Raises instead of giving the leaves of a block."""

    def __init__(self, error: Exception) -> None:
        super().__init__(Home(2).store)
        self.error = error

    def get_many(self, cids: Sequence[Cid]) -> Iterator[tuple[Cid, Buffer]]:
        self.asked += cids
        yield from ()
        raise self.error


ERRORS = [
    (BlockNotFound("absent", cids=[]), Outcome.MISSED, Verdict.RECOMPUTE),
    (PeerUnreachable("no answer"), Outcome.UNKNOWN, None),
    (DigestMismatch("wrong bytes", cid="x"), Outcome.FAULT, Verdict.FAULT),
]


@pytest.mark.parametrize(("error", "outcome", "verdict"), ERRORS)
def test_a_peer_that_fails_is_a_record_and_the_next_one_is_asked(
    error: Exception, outcome: Outcome, verdict: Verdict | None
) -> None:
    home = Home(2)
    home.store.delete_many(home.nodes[home.blocks[1]].kv)
    failing, sound = Failing(error), Remote(Home(2).store)
    residency = home.residency(3, sources=[failing], may_ask=lambda _: True)
    residency.lower.peers.learn(home.blocks[1], 0)
    lease = residency.ensure(home.blocks)
    assert not residency.lower.peers.holds(home.blocks[1])
    assert (lease.cids, lease.miss and lease.miss.cid) == (home.blocks[:1], str(home.nodes[home.blocks[1]].kv[0]))
    lease.close()
    [move] = [each for each in residency.log.moves if each.source is L3]
    assert (move.cid, move.target, move.size_bytes, move.outcome) == (home.blocks[1], L2, 0, outcome)
    assert move.verdict is verdict
    residency.lower.sources.append(sound)
    with residency.ensure(home.blocks) as lease:
        assert lease.tiers == [L0, L3]
    assert residency.log.blocks[L3, L2] == 1


@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize(("source", "target"), [(L0, L1), (L1, L2), (L2, L0), (L3, L2)])
def test_a_move_is_a_record_in_each_direction(source: Tier, target: Tier, outcome: Outcome) -> None:
    expected = {Outcome.OK: Verdict.HIT, Outcome.FAULT: Verdict.FAULT, Outcome.MISSED: Verdict.RECOMPUTE}
    move = Move(0, Home(1).blocks[0], source, target, 10, outcome)
    assert move.verdict == expected.get(outcome)


def test_where_the_store_has_no_room_a_peers_block_is_used_and_stays_as_long_as_the_peer_is_lost() -> None:
    home = Home(2)

    class Full(WrapperStore):
        def put_many(self, blocks: Any, *, hashed: bool = False) -> int:
            raise TierFull("no space left")

    remote = Remote(Home(2).store)
    for cid in home.blocks:
        home.drop(cid)
    residency = home.residency(1, Full(home.store), sources=[remote], may_ask=lambda _: True)
    with residency.ensure(home.blocks[:1]) as lease:
        assert content(residency.pool, lease.rows[0]) == home.bytes[home.blocks[0]]
    assert residency.log.blocks == {(L3, L0): 1}
    residency.note("peer-timeout")
    with pytest.raises(TierFull):  # what may be the only copy does not make room
        residency.ensure(home.blocks[1:], prev=home.blocks[0])
    residency.lower.peers.learn(home.blocks[0], 9)  # a verified read shows that the peer has it
    with residency.ensure(home.blocks[1:], prev=home.blocks[0]) as lease:
        assert lease.tiers == [L3]
    assert residency.tier_of(home.blocks[0]) is L3


def test_a_wrong_block_is_refused_where_it_is_resident_too() -> None:
    home = Home(2)
    residency = home.residency(3)
    for _ in range(2):
        assert residency.ensure(home.blocks[1:]).miss is not None  # it does not follow nothing
        with residency.ensure(home.blocks, home.tokens[::-1]) as lease:
            assert (lease.rows, lease.miss and "'tokens'" in lease.miss.reason) == ([], True)
        with residency.ensure(home.blocks, home.tokens) as lease:
            assert (len(lease.rows), lease.miss) == (2, None)


STEPS = ["get", "get_into", "missing", "put_many", "get_many", "allocate", "copy_out", "copy_in"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, RuntimeError])
@pytest.mark.parametrize(
    ("step", "after"),
    # A row that was counted is handed over in the same statement, so there is nothing after `allocate`.
    [(step, after) for step in STEPS for after in (False, True) if (step, after) != ("allocate", True)],
)
def test_whatever_stops_a_load_leaves_all_as_it_adds_up(
    step: str, after: bool, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call of each helper is made to fail in turn, before or after it did its work."""
    for at in range(1, 9):
        home = Home(6)
        residency, remote = settled(home, L1)
        home.drop(home.blocks[3])
        calls = 0

        def stop() -> None:
            nonlocal calls
            calls += 1
            if calls == at:  # noqa: B023 - used within this turn alone
                raise error

        def wrap(inner: Callable[..., Any]) -> Callable[..., Any]:
            def stopping(*args: Any, **options: Any) -> Any:
                if not after:
                    stop()
                result = inner(*args, **options)
                if after:
                    stop()
                return result

            return stopping

        owner = remote if step == "get_many" else residency.pool if hasattr(residency.pool, step) else home.store
        with monkeypatch.context() as patch:
            if step == "get_many":
                remote.before = stop
            else:
                patch.setattr(owner, step, wrap(getattr(owner, step)))
            try:
                for first, count in ((0, 2), (2, 3), (4, 2), (0, 3)):
                    blocks = home.blocks[first : first + count]
                    residency.ensure(blocks, prev=home.prev(first)).close()
            except error:
                pass
        remote.before = lambda: None
        assert residency.check_integrity() == []
        assert residency.pool.used_blocks == 0
        assert residency._flights == set()
        for first, count in ((0, 3), (3, 3)):
            with residency.ensure(home.blocks[first : first + count], prev=home.prev(first)) as lease:
                assert [content(residency.pool, row) for row in lease.rows] == [
                    home.bytes[cid] for cid in home.blocks[first : first + count]
                ]
        if calls < at:
            assert at > 1 or after  # the helper is used
            break


def test_a_lease_is_over_however_its_block_ends() -> None:
    home = Home(3)
    residency = home.residency(3)
    for error in (KeyboardInterrupt, MemoryError, GeneratorExit):
        try:
            with residency.ensure(home.blocks) as lease:
                assert residency.pool.used_blocks == 3
                raise error
        except error:
            pass
        assert (residency.pool.used_blocks, lease.rows) == (0, [])
    lease = residency.ensure(home.blocks)
    rows = lease.keep()
    lease.close()
    assert residency.pool.used_blocks == 3
    for row in rows:
        residency.pool.release(row)
    with pytest.raises(RuntimeError, match="no user"):
        residency.pool.release(rows[0])


def test_each_tier_is_measured() -> None:
    home, now_s = Home(4), iter(range(1000))
    residency, _ = settled(home, L2)
    speeds = measure(residency, home.blocks, lambda: float(next(now_s)))
    assert [each.tier for each in speeds] == list(Tier)
    assert all(each.latency_s == 1.0 and each.bytes_s == each.size_bytes for each in speeds)
    assert residency.pool.used_blocks == 0
    assert [each.tier for each in measure(Home(1).residency(3), [], lambda: 0.0)] == []


def test_an_interface_for_who_walks_ahead() -> None:
    """A prefetcher knows names and order, not tokens; what it brought is used without another read."""
    home = Home(4)
    store = CountingStore(home.store)
    residency = home.residency(4, store)
    ahead: Lease = residency.ensure(home.blocks)
    ahead.close()
    store.counts.clear()
    with residency.ensure(home.blocks, home.tokens) as lease:
        assert (len(lease.rows), store.counts) == (4, {})
    assert isinstance(home.store, MemoryStore)
