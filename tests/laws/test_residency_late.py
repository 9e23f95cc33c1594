"""Residency over a device that does things late: the same machine, and kernels that read what rows hold by then."""

from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from random import Random
from threading import Event

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import DigestMismatch, NotFound, TierFull
from cyberkv.cybergraph.verdict import Tier
from cyberkv.runtime.cuda.devicepool import DevicePool
from cyberkv.runtime.cuda.devicerows import DeviceRows
from cyberkv.runtime.tiers import Lease, Residency
from cyberkv.runtime.tiers.coming import BlocksComing
from tests.contracts.synthetic import BLOCK_SIZE, make_blocks
from tests.gpu.fakes import FakeDevice
from tests.gpu.rigs import Inline, WatchedStore
from tests.laws.pools import late_pool
from tests.laws.shelves import BLOCK_BYTES, MODEL, Home, put
from tests.laws.test_residency import BLOCKS, ResidencyMachine


class LateHome(Home):
    """A home whose store says to a device when the host touches bytes."""

    def __init__(self, blocks: int, device: FakeDevice) -> None:
        super().__init__(blocks, store=WatchedStore(device))
        self.blocks_of: dict[Cid, list[bytes]] = {
            cid: [self.store.get(leaf) for leaf in node.kv] for cid, node in self.nodes.items()
        }
        self.pools = lambda rows, host_bytes: late_pool(rows, host_bytes, device=device, executor=Inline())  # type: ignore[misc]

    def leaf(self, cid: Cid, group: int) -> bytes:
        return self.blocks_of[cid][group]


class LateResidencyMachine(ResidencyMachine):
    """Nothing waits for the device in order to look: what kernels and copies saw is looked at when it is there."""

    @initialize(seed=st.integers(0, 1 << 20))
    def start(self, seed: int) -> None:
        self.device.draw.seed(seed)
        self.device.change_pace()

    def make_home(self) -> Home:
        self.device = FakeDevice(Random(0))
        self.looked: list[tuple[list[bytes], bytes]] = []
        return LateHome(BLOCKS, self.device)

    @rule(at=st.integers(0, BLOCKS - 1), step=st.integers(1, 12), warms=st.booleans())
    def stopped(self, at: int, step: int, warms: bool) -> None:
        """Something on the way raises: nothing is held, and what is in memory is right."""
        self.device.fails_at = self.device.calls + step
        with suppress(KeyboardInterrupt, TierFull):
            if warms:
                self.residency.warm(self.home.blocks[at], self.home.prev(at))
            else:
                self.residency.ensure(self.home.blocks[at : at + 2], prev=self.home.prev(at)).close()
        self.device.fails_at = 0

    @rule(
        first=st.integers(0, BLOCKS - 1), count=st.integers(1, 4), layers=st.integers(0, 4),
        end=st.sampled_from(("finish", "stop", "close")),
    )  # fmt: skip
    def come_later(self, first: int, count: int, layers: int, end: str) -> None:
        """The last blocks of a lease come while kernels read the first layers."""
        blocks = self.home.blocks[first : first + count]
        try:
            lease = self.residency.ensure(blocks, prev=self.home.prev(first), later=True)
        except TierFull:
            return
        self.leases.append(lease)
        if (coming := lease.coming) is None:
            return
        here = coming.first_block
        try:
            for layer in range(layers):
                coming.take(layer)
                self.looked += [
                    (self.device.read(self.pool.leaf(row, layer // 2)), self.home.leaf(cid, layer // 2))
                    for cid, row in zip(lease.cids[here:], lease.rows[here:], strict=True)
                ]
            if end == "finish":
                coming.finish()
            elif end == "stop" and not coming.stop():
                lease.cut(here)
        except NotFound:
            miss = coming.cut()
            assert miss is not None
            lease.cut(miss.position_start // BLOCK_SIZE)
        if end == "close":
            self.leases.pop().close()
        else:
            lease.coming = None
        assert not self.residency._flights

    @rule(room=st.booleans())
    def pinned_memory(self, room: bool) -> None:
        """Page-locked memory beside the slots is there, or not: then what is dirty stays."""
        self.device.left_pinned_bytes = 1 << 30 if room else 0

    @rule()
    def reset(self) -> None:
        self.device.left_pinned_bytes = 1 << 30
        super().reset()  # type: ignore[misc]

    def write(self, row: int, data: bytes) -> None:
        target, source = self.pool.bytes[row], torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self.pool.settle([row])
        self.device.kernel(lambda: target.copy_(source), writes=[target])

    @invariant()
    def rows_hold_what_their_names_say(self) -> None:
        """A kernel looks at what has users; the rest shows when it is used again, or at the end."""
        rows = [*self.held, *((c, r) for each in self.leases for c, r in zip(each.cids, each.rows, strict=True))]
        self.pool.settle([row for _, row in rows])
        self.looked += [(self.device.read(self.pool.bytes[row]), self.home.bytes[cid]) for cid, row in rows]
        assert all(seen in ([], [expected]) for seen, expected in self.looked)

    @invariant()
    def nothing_is_left_unordered_or_behind(self) -> None:
        assert self.device.violations == []
        below = [entry for entry in self.residency.shelf.entries.values() if entry.row is None]
        assert (self.pool.moves.host.used, self.pool.moves.ring.used) == (len(below), 0)

    def teardown(self) -> None:
        self.device.left_pinned_bytes = 1 << 30
        for cid, entry in self.residency.shelf.entries.items():
            assert b"".join(self.residency.shelf.views(entry)) == self.home.bytes[cid]
        self.device.drain()
        assert all(seen == [expected] for seen, expected in self.looked)
        assert self.device.violations == []


class TestResidency(LateResidencyMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=8, stateful_step_count=25, deadline=None)


@pytest.mark.slow
class TestResidencyAtLength(LateResidencyMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


class Trip:
    """Blocks that come up, go down, come up again and are written down, on one device."""

    def __init__(self, *, seed: int = 0) -> None:
        self.device = FakeDevice(Random(seed))
        self.home = LateHome(6, self.device)
        self.residency = self.home.residency(3, host_bytes=2 * BLOCK_BYTES)
        self.pool: DevicePool = self.residency.pool  # type: ignore[assignment]
        self.looked: list[tuple[list[bytes], bytes]] = []

    def go(self) -> None:
        home, residency = self.home, self.residency
        with residency.ensure(home.blocks[:3], later=True) as lease:
            self.come(lease)
            self.look(lease)
        assert residency.shelf.evict()
        assert residency.shelf.evict()  # the last two are in host memory
        with residency.ensure(home.blocks[:3]) as lease:
            self.look(lease)
        residency.reset()
        assert residency.warm(home.blocks[4], home.prev(4))
        with ExitStack() as stack:
            cid, row = home.blocks[5], self.pool.allocate()
            stack.callback(self.pool.release, row)
            put(self.pool, row, home.bytes[cid])
            residency.keep(cid, home.nodes[cid], row, dirty=True)
            home.drop(cid)
        with residency.ensure(home.blocks[3:6], prev=home.prev(3)) as lease:
            self.look(lease)
        assert residency.flush() == 1
        assert home.store.has(cid)
        residency.reset()

    def come(self, lease: Lease) -> None:
        """Look at each layer group once it is there, and at the end have all."""
        coming = lease.coming
        assert coming is not None
        for layer in range(4):
            coming.take(layer)
            self.looked += [
                (self.device.read(self.pool.leaf(row, layer // 2)), self.home.leaf(cid, layer // 2))
                for cid, row in zip(lease.cids, lease.rows, strict=True)
            ]
        coming.finish()

    def look(self, lease: Lease) -> None:
        self.pool.settle(lease.rows)
        self.looked += [
            (self.device.read(self.pool.bytes[row]), self.home.bytes[cid])
            for cid, row in zip(lease.cids, lease.rows, strict=True)
        ]

    def is_clean(self) -> bool:
        """Nothing is held, nothing was read or written out of order, and what kernels saw is right."""
        below = sum(entry.row is None for entry in self.residency.shelf.entries.values())
        slots = (self.pool.moves.host.used, self.pool.moves.ring.used)
        assert self.residency.check_integrity() == self.device.violations == []
        assert (self.pool.used_blocks, *slots) == (0, below, 0)
        self.device.drain()
        return all(seen == [expected] for seen, expected in self.looked)


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_no_step_of_a_trip_that_fails_leaves_anything_behind(stride: int) -> None:
    """The control: the trip that nothing stops."""
    trip = Trip()
    first = trip.device.calls + 1
    trip.go()
    assert trip.is_clean()
    assert len(trip.looked) == 9 + 4 * 3
    assert trip.residency.log.blocks[Tier.L0, Tier.L1] == trip.residency.log.blocks[Tier.L1, Tier.L0] - 1 == 2
    for step in range(first, trip.device.calls + 1, stride):
        stopped = Trip(seed=step)
        stopped.device.fails_at = step
        with pytest.raises(KeyboardInterrupt):
            stopped.go()
        assert stopped.is_clean(), step
        stopped.residency.flush()
        stopped.residency.reset()
        home = stopped.home
        make_blocks(home.store, MODEL, home.tokens)
        stopped.go()
        assert stopped.is_clean(), step


@pytest.mark.parametrize("lost", ["order", "settle"])
def test_a_pool_that_forgets_to_wait_is_found_out(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: both show it, wrong bytes and uses that nothing orders."""
    monkeypatch.setattr(DeviceRows, lost, lambda *_: None)
    wrong = violations = 0
    for seed in range(20):
        trip = Trip(seed=seed)
        trip.go()
        trip.device.drain()
        wrong += any(seen != [expected] for seen, expected in trip.looked)
        violations += bool(trip.device.violations)
    assert wrong
    assert violations == 20


class Coming:
    """Three blocks on their way into rows of a lease, read by a thread of its own."""

    def __init__(self, executor: Executor) -> None:
        self.device = FakeDevice(Random(0))
        self.home = Home(6, store=WatchedStore(self.device))
        self.store: WatchedStore = self.home.store  # type: ignore[assignment]
        self.pool = late_pool(6, 0, device=self.device, executor=executor)
        self.residency = Residency(self.pool, self.store, MODEL)

    def begin(self) -> tuple[Lease, BlocksComing]:
        """The first is there already."""
        self.residency.ensure(self.home.blocks[:1]).close()
        lease = self.residency.ensure(self.home.blocks[:4], self.home.tokens, later=True)
        assert lease.coming is not None
        return lease, lease.coming

    def look(self, row: int, layer: int) -> list[bytes]:
        return self.device.read(self.pool.leaf(row, layer // 2))

    def expected(self, block: int, layer: int) -> bytes:
        return self.store.get(self.home.nodes[self.home.blocks[block]].kv[layer // 2])

    def is_clean(self) -> bool:
        assert self.residency.check_integrity() == self.device.violations == []
        assert not self.residency._flights
        return self.pool.used_blocks == self.pool.moves.ring.used == 0


def test_first_layers_are_computed_while_the_last_of_a_lease_are_read() -> None:
    """Nobody else finds them until they are whole; then they are found without being read again."""
    with ThreadPoolExecutor(1) as executor:
        made, may_go = Coming(executor), Event()
        made.store.before = lambda: made.store.reads < 4 or may_go.wait(120) or None
        lease, coming = made.begin()
        with lease:
            assert coming.first_block == 1
            seen = []
            for layer in range(4):
                if layer == 2:
                    made.device.drain()
                    assert seen == [[made.expected(block, 0)] for _ in range(2) for block in range(1, 4)]
                    assert [made.residency.tier_of(cid) for cid in lease.cids] == [Tier.L0, None, None, None]
                    may_go.set()
                assert coming.take(layer) == (BLOCK_SIZE, 4 * BLOCK_SIZE)
                assert coming.take(layer) is None
                seen += [made.look(row, layer) for row in lease.rows[1:]]
            coming.finish()
            made.device.drain()
            assert seen[6:] == [[made.expected(block, 2)] for _ in range(2) for block in range(1, 4)] != seen[:6]
            assert [made.residency.tier_of(cid) for cid in lease.cids] == [Tier.L0] * 4
        assert made.is_clean()
        reads = made.store.reads
        made.residency.ensure(made.home.blocks[:4]).close()
        assert made.store.reads == reads


@pytest.mark.parametrize("block", [1, 2, 3])
def test_what_does_not_come_ends_the_layer_that_needs_it(block: int) -> None:
    made = Coming(Inline())
    leaf = made.home.nodes[made.home.blocks[block]].kv[1]
    made.store.damage(leaf)
    lease, coming = made.begin()
    with lease:
        with pytest.raises(DigestMismatch):
            coming.take(2)
        miss = coming.cut()
        assert miss is not None
        assert (miss.position_start, miss.cid) == (block * BLOCK_SIZE, str(leaf))
        assert coming.cut() is None
        assert coming.take(0) == ((BLOCK_SIZE, block * BLOCK_SIZE) if block > 1 else None)
        assert [made.residency.tier_of(cid) for cid in lease.cids] == [Tier.L0] * block + [None] * (4 - block)
        assert not made.store.has(leaf)
        coming.finish()
        assert coming.stop()
    assert made.is_clean()


def test_who_waits_for_what_another_brings_goes_on_when_that_is_over() -> None:
    """Whether it comes or is given up: then the one who waited reads it."""
    for gives_up in (False, True):
        with ThreadPoolExecutor(1) as executor, ThreadPoolExecutor(1) as other:
            made = Coming(executor)
            lease, coming = made.begin()
            asked = other.submit(made.residency.ensure, made.home.blocks[:4])
            if not gives_up:
                coming.finish()
            lease.close()
            with asked.result(20) as found:
                assert len(found.rows) == 4
                assert found.tiers[1:] in ([Tier.L0] * 3, [Tier.L2] * 3)
            assert made.is_clean()
