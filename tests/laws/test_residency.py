"""Residency against plain models: who is pinned, what goes first, what is never lost, and that it all adds up."""

from collections import Counter
from itertools import pairwise
from threading import Barrier, Event, Thread
from time import sleep

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import TierFull
from cyberkv.cybergraph.verdict import Tier
from cyberkv.runtime.pool import BlockPool
from cyberkv.runtime.tiers import Lease, replay
from cyberkv.runtime.tiers.policy import Action, Standing, disposal, eviction_key
from cyberkv.runtime.tiers.shelf import HOT_STEPS
from tests.laws.pools import pools  # noqa: F401 - the fixture
from tests.laws.shelves import BLOCK_BYTES, Home, content, put

BLOCKS, ROWS, HOST_BLOCKS, CACHED_BLOCKS = 9, 5, 2, 3
over_both = pytest.mark.usefixtures("pools")


class ResidencyMachine(RuleBasedStateMachine):
    """Leases, kept rows, computed blocks, events and a store that forgets; the oracle knows what each block holds."""

    def __init__(self) -> None:
        super().__init__()
        self.home = self.make_home()
        self.residency = self.home.residency(
            ROWS, host_bytes=HOST_BLOCKS * BLOCK_BYTES, cached_bytes=CACHED_BLOCKS * BLOCK_BYTES
        )
        self.leases: list[Lease] = []
        self.held: list[tuple[Cid, int]] = []
        self.computed: set[Cid] = set()
        """Blocks that were computed and are not allowed to be lost."""

    def make_home(self) -> Home:
        return Home(BLOCKS)

    @property
    def pool(self) -> BlockPool:
        return self.residency.pool

    def write(self, row: int, data: bytes) -> None:
        put(self.pool, row, data)

    def pinned(self) -> Counter[int]:
        rows = Counter(row for lease in self.leases for row in lease.rows)
        rows.update(row for _, row in self.held)
        return rows

    @rule(first=st.integers(0, BLOCKS - 1), count=st.integers(1, 4), closes=st.booleans())
    def ensure(self, first: int, count: int, closes: bool) -> None:
        blocks = self.home.blocks[first : first + count]
        absent = [cid for cid in blocks if not self.home.store.has(cid) and self.residency.tier_of(cid) is None]
        try:
            lease = self.residency.ensure(blocks, prev=self.home.prev(first))
        except TierFull:
            dirty = [each for each in self.residency.shelf.entries.values() if each.dirty]
            assert len(self.pinned()) + len(blocks) > ROWS or dirty
            return
        assert lease.cids == blocks[: len(lease.rows)]
        assert (lease.miss is None) == (len(lease.rows) == len(blocks))
        if not absent:
            assert lease.miss is None
        self.leases.append(lease)
        if closes:
            self.close(len(self.leases) - 1)

    @rule(at=st.integers(0, 20), twice=st.booleans())
    def close(self, at: int, twice: bool = False) -> None:
        if self.leases:
            lease = self.leases.pop(at % len(self.leases))
            lease.close()
            if twice:
                lease.close()

    @rule(at=st.integers(0, 20))
    def hand_over(self, at: int) -> None:
        if self.leases:
            lease = self.leases.pop(at % len(self.leases))
            self.held += zip(lease.cids, lease.keep(), strict=True)
            lease.close()

    @rule(at=st.integers(0, 20))
    def let_go(self, at: int) -> None:
        if self.held:
            self.pool.release(self.held.pop(at % len(self.held))[1])

    @rule(at=st.integers(0, BLOCKS - 1), dirty=st.booleans())
    def compute(self, at: int, dirty: bool) -> None:
        cid = self.home.blocks[at]
        try:
            row = self.pool.allocate()
        except TierFull:
            return
        self.write(row, self.home.bytes[cid])
        dirty = dirty or not self.home.store.has(cid)
        self.residency.keep(cid, self.home.nodes[cid], row, dirty=dirty)
        self.computed.add(cid)
        self.held.append((cid, row))

    @rule(at=st.integers(0, BLOCKS - 1))
    def warm(self, at: int) -> None:
        """Block `at` comes to host memory."""
        cid, before = self.home.blocks[at], self.residency.tier_of(self.home.blocks[at])
        came = self.residency.warm(cid, self.home.prev(at))
        assert self.residency.tier_of(cid) is (Tier.L1 if came else before)
        assert not came or before is None

    @rule()
    def step(self) -> None:
        self.residency.step()

    @rule(at=st.integers(0, BLOCKS - 1))
    def collect_garbage(self, at: int) -> None:
        """The store forgets a block, and says so: copies in memory become dirty."""
        self.home.drop(self.home.blocks[at])
        if self.residency.tier_of(self.home.blocks[at]) is None:
            self.computed.discard(self.home.blocks[at])
        self.residency.note("gc")

    @rule(event=st.sampled_from(["pause", "disk-full", "peer-timeout", "peer-not-found"]))
    def harmless(self, event: str) -> None:
        before = {cid: self.residency.tier_of(cid) for cid in self.home.blocks}
        self.residency.note(event)
        assert {cid: self.residency.tier_of(cid) for cid in self.home.blocks} == before

    @rule()
    def reset(self) -> None:
        self.residency.flush()
        self.residency.reset()
        assert self.residency.shelf.entries == {}
        assert self.pool.kept_blocks == 0

    @invariant()
    def it_adds_up(self) -> None:
        assert self.residency.check_integrity() == []
        assert self.pool.check_integrity() == []
        assert {row: self.pool.users(row) for row in self.pinned()} == self.pinned()
        assert self.pool.used_blocks == len(self.pinned())
        assert self.residency.shelf.used_host_bytes <= HOST_BLOCKS * BLOCK_BYTES

    @invariant()
    def rows_hold_what_their_names_say(self) -> None:
        for cid, row in [
            *self.held,
            *((c, r) for lease in self.leases for c, r in zip(lease.cids, lease.rows, strict=True)),
        ]:
            assert content(self.pool, row) == self.home.bytes[cid]
        for cid, entry in self.residency.shelf.entries.items():
            assert b"".join(self.residency.shelf.views(entry)) == self.home.bytes[cid]

    @invariant()
    def what_was_computed_is_somewhere(self) -> None:
        for cid in self.computed:
            assert self.home.store.has(cid) or self.residency.tier_of(cid) is not None

    @invariant()
    def the_log_tells_where_all_is(self) -> None:
        where = {
            cid: {self.residency.tier_of(cid)} for cid in self.home.blocks if self.residency.tier_of(cid) is not None
        }
        assert replay(self.residency.log.moves) == where


TestResidency = ResidencyMachine.TestCase
TestResidency.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@given(uses=st.lists(st.integers(0, BLOCKS - 1), max_size=40), rows=st.integers(1, 5))
@settings(deadline=None)
def test_the_longest_unused_leaves_first(uses: list[int], rows: int) -> None:
    """Oracle: a list, the longest unused first."""
    home = Home(BLOCKS)
    residency, model = home.residency(rows), list[int]()
    for at in uses:
        residency.ensure([home.blocks[at]], prev=home.prev(at)).close()
        if at in model:
            model.remove(at)
        elif len(model) == rows:
            model.pop(0)
        model.append(at)
        assert {at for at, cid in enumerate(home.blocks) if residency.tier_of(cid) is Tier.L0} == set(model)
    assert residency.log.read_bytes(Tier.L2) % BLOCK_BYTES == 0


@over_both
def test_of_one_run_the_end_leaves_first() -> None:
    home = Home(6)
    residency = home.residency(4)
    residency.ensure(home.blocks[:4]).close()
    residency.ensure(home.blocks[4:5], prev=home.prev(4)).close()
    assert [residency.tier_of(cid) for cid in home.blocks] == [*[Tier.L0] * 3, None, Tier.L0, None]


@over_both
def test_what_decoding_used_lately_leaves_last() -> None:
    home = Home(6)
    for steps, leaves in ((0, 0), (1, 1)):
        residency = home.residency(2, host_bytes=2 * BLOCK_BYTES)
        with residency.ensure(home.blocks[:1]):
            for _ in range(steps):
                residency.step()
        residency.ensure(home.blocks[1:2], prev=home.prev(1)).close()
        residency.ensure(home.blocks[2:4], prev=home.prev(2)).close()
        assert {residency.tier_of(cid) for cid in home.blocks[:2]} == {Tier.L1}
        residency.ensure(home.blocks[4:5], prev=home.prev(4)).close()  # one of three leaves host memory
        assert residency.tier_of(home.blocks[leaves]) is None
        assert residency.tier_of(home.blocks[1 - leaves]) is Tier.L1


@over_both
def test_steps_while_nobody_used_it_make_nothing_hot() -> None:
    home = Home(1)
    residency = home.residency(2)
    residency.ensure(home.blocks).close()
    residency.step()
    residency.ensure(home.blocks).close()
    [entry] = residency.shelf.entries.values()
    assert not residency.shelf.standing(entry).hot
    with residency.ensure(home.blocks):  # the control
        residency.step()
    assert residency.shelf.standing(entry).hot
    for _ in range(HOT_STEPS):
        residency.step()
    assert not residency.shelf.standing(entry).hot


CELLS = {
    (True, True): Action.STORE, (True, False): Action.STORE, (False, True): Action.DROP, (False, False): Action.KEEP,
}  # fmt: skip


@pytest.mark.parametrize("hot", [False, True])
@pytest.mark.parametrize(("cell", "action"), CELLS.items())
def test_every_cell_of_what_becomes_of_a_block(cell: tuple[bool, bool], action: Action, hot: bool) -> None:
    decided = disposal(dirty=cell[0], reproducible=cell[1], hot=hot)
    assert (decided.action, decided.later) == (action, hot)


@over_both
@pytest.mark.parametrize("hot", [False, True])
@pytest.mark.parametrize(("cell", "action"), CELLS.items())
def test_every_cell_as_it_happens(cell: tuple[bool, bool], action: Action, hot: bool) -> None:
    dirty, reproducible = cell
    home = Home(2)
    cid = home.blocks[0]
    residency = home.residency(1)
    home.drop(cid)
    row = residency.pool.allocate()
    put(residency.pool, row, home.bytes[cid])
    residency.keep(cid, home.nodes[cid], row, dirty=True)
    entry = residency.shelf.entries[cid]
    entry.borrowed, entry.regenerated = not dirty, reproducible  # not dirty and not stored: it came from a peer
    if hot:
        residency.step()
    residency.pool.release(row)
    assert residency.shelf.standing(entry).hot is hot
    assert residency.shelf.evict() is (action is not Action.KEEP)
    assert home.store.has(cid) is (action is Action.STORE)
    assert residency.tier_of(cid) is (Tier.L0 if action is Action.KEEP else None)
    assert residency.check_integrity() == []
    if action is Action.KEEP:
        with pytest.raises(TierFull):
            residency.ensure(home.blocks[1:], prev=cid)
        assert content(residency.pool, row) == home.bytes[cid]


@over_both
@pytest.mark.parametrize("sole", [True, False])
def test_a_tier_full_of_sole_copies_takes_nothing_more_and_keeps_its_budget(sole: bool) -> None:
    home = Home(2)
    residency = home.residency(2, host_bytes=BLOCK_BYTES)
    residency.ensure(home.blocks).close()
    assert residency.shelf.evict()
    [above] = [cid for cid in home.blocks if residency.tier_of(cid) is Tier.L0]
    [below] = {*home.blocks} - {above}
    entry = residency.shelf.entries[below]
    entry.stored, entry.borrowed = not sole, sole  # from a peer that is lost, and nowhere else
    assert residency.shelf.evict()
    assert residency.shelf.used_host_bytes == BLOCK_BYTES
    assert residency.tier_of(below) is (Tier.L1 if sole else None)
    assert residency.tier_of(above) is (None if sole else Tier.L1)  # it makes way in the tier, or does without
    assert residency.check_integrity() == []


@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 3), st.integers(0, 2)), max_size=8).map(
        lambda rows: [Standing(*row, stamp) for stamp, row in enumerate(rows)]
    )
)
def test_the_order_of_eviction_is_total_and_spares_what_is_in_use(standings: list[Standing]) -> None:
    ordered = sorted(standings, key=eviction_key)
    assert ordered == sorted(sorted(standings, key=lambda each: each.hot), key=eviction_key)
    assert [each.refs for each in ordered] == sorted(each.refs for each in standings)
    for one, two in pairwise(ordered):
        if one.refs == two.refs:
            assert (one.hot, one.used, one.rebuild) <= (two.hot, two.used, two.rebuild)


@over_both
@pytest.mark.parametrize("keeps", [False, True])
def test_everything_pinned_is_a_full_tier(keeps: bool) -> None:
    home = Home(4)
    residency = home.residency(3)
    lease = residency.ensure(home.blocks[:3])
    rows = lease.keep() if keeps else lease.rows
    with pytest.raises(TierFull, match="pool rows") as caught:
        residency.ensure(home.blocks[3:], prev=home.prev(3))
    assert caught.value.hint
    assert (residency.pool.used_blocks, residency.pool.kept_blocks, residency.check_integrity()) == (3, 0, [])
    with residency.ensure(home.blocks[:3]) as more:  # what is there can be shared
        assert more.rows == rows
    for row in rows if keeps else []:
        residency.pool.release(row)
    lease.close()
    with residency.ensure(home.blocks[3:], prev=home.prev(3)) as after:
        assert len(after.rows) == 1


@over_both
@pytest.mark.parametrize("threads", [2, 5])
def test_several_threads_load_a_block_once(threads: int) -> None:
    home = Home(8)
    residency, started, failures = home.residency(8), Barrier(threads), list[BaseException]()
    get_into = home.store.get_into

    def slow(cids: list[Cid], out: list[memoryview]) -> None:
        sleep(0.01)  # so that the others come meanwhile
        get_into(cids, out)

    home.store.get_into = slow  # type: ignore[assignment, method-assign]

    def want(first: int) -> None:
        try:
            started.wait(120)
            for _ in range(20):
                with residency.ensure(home.blocks[first:], prev=home.prev(first)) as lease:
                    assert [content(residency.pool, row) for row in lease.rows] == [
                        home.bytes[cid] for cid in home.blocks[first:]
                    ]
        except BaseException as error:
            failures.append(error)

    running = [Thread(target=want, args=(at % 3,)) for at in range(threads)]
    for each in running:
        each.start()
    for each in running:
        each.join()
    assert failures == []
    assert residency.log.blocks == {(Tier.L2, Tier.L0): 8}
    assert residency.check_integrity() == []
    assert residency.pool.used_blocks == 0


@over_both
def test_whoever_waits_for_a_load_that_fails_tries_for_himself() -> None:
    home = Home(2)
    residency, under_way, go_on = home.residency(4), Event(), Event()
    get_into, calls = home.store.get_into, list[int]()

    def slow(cids: list[Cid], out: list[memoryview]) -> None:
        calls.append(len(cids))
        if len(calls) == 1:
            under_way.set()
            go_on.wait(120)
            raise KeyboardInterrupt
        get_into(cids, out)

    home.store.get_into = slow  # type: ignore[assignment, method-assign]
    results: list[object] = []

    def first() -> None:
        try:
            residency.ensure(home.blocks)
        except KeyboardInterrupt as error:
            results.append(error)

    def second() -> None:
        with residency.ensure(home.blocks) as lease:
            results.append(len(lease.rows))

    one, two = Thread(target=first), Thread(target=second)
    one.start()
    under_way.wait(120)
    two.start()
    go_on.set()
    one.join(120)
    two.join(120)
    assert [type(each) for each in results] == [KeyboardInterrupt, int]
    assert results[1] == 2
    assert residency.check_integrity() == []
