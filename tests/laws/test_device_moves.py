"""Device pool, slots and moves against plain dictionaries of bytes, on a device that runs things in any order."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cyberkv.cybergraph.errors import Corrupt, NotFound, TierFull
from cyberkv.runtime.cuda.staging import HostRow
from tests.gpu.rigs import Rig

BLOCKS, ROWS, HOST_BLOCKS = 5, 3, 1
NAMED = st.sampled_from((True, True, False))


class Below:
    """A keeper: rows with a name are kept. One that makes way goes to host memory, where that has room."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.names: dict[int, str] = {}
        self.kept: list[int] = []
        self.host: dict[str, HostRow] = {}

    def unused(self, row: int) -> bool:
        if row in self.names:
            self.kept.append(row)
        return row in self.names

    def evict(self) -> bool:
        if not self.kept:
            return False
        row = self.kept[0]
        if self.names[row] not in self.host and self.rig.moves.host.used < self.rig.moves.host.count:
            self.host[self.names[row]] = self.rig.moves.save(row)
        del self.names[self.kept.pop(0)]
        self.rig.pool.drop(row)
        return True


class MovesMachine(RuleBasedStateMachine):
    """Blocks are computed, loaded, shared, let go, evicted, restored and read; some loads fail."""

    @initialize(seed=st.integers(0, 1 << 20), slots=st.integers(1, 3), leaves=st.integers(1, 3))
    def start(self, seed: int, slots: int, leaves: int) -> None:
        self.rig = Rig(
            seed=seed, blocks=BLOCKS, rows=ROWS, host_blocks=HOST_BLOCKS, slots=slots, leaves_per_slot=leaves
        )  # fmt: skip
        self.below = Below(self.rig)
        self.rig.pool.attach(self.below)
        self.texts: dict[str, bytes] = {}
        """What a name stands for."""
        self.held: list[tuple[int, str]] = []
        self.looked: list[tuple[list[bytes], bytes]] = []
        self.damaged: set[int] = set()

    def take(self, count: int) -> list[int]:
        """Take rows; where there are too few, none."""
        rows: list[int] = []
        try:
            for _ in range(count):
                rows += [self.rig.pool.allocate()]
        except TierFull:
            assert len({row for row, _ in self.held}) + count > ROWS
            self.give(rows)
            return []
        return rows

    def give(self, rows: list[int]) -> None:
        for row in rows:
            self.rig.pool.release(row)

    def hold(self, row: int, name: str, text: bytes, named: bool) -> None:
        self.texts[name] = text
        self.held.append((row, name))
        if named and name not in self.below.names.values():
            self.below.names[row] = name

    @rule(value=st.integers(1, 200), named=NAMED)
    def compute(self, value: int, named: bool) -> None:
        for row in self.take(1):
            self.hold(row, f"computed {value}", self.rig.fill(row, value), named)

    @rule(first=st.integers(0, BLOCKS - 1), count=st.integers(1, 2), named=NAMED, reads=st.booleans())
    def load(self, first: int, count: int, named: bool, reads: bool) -> None:
        leaves = self.rig.leaves[first : first + count]
        rows = self.take(len(leaves))
        if not rows:
            return
        whole = next((i for i in range(len(rows)) if first + i in self.damaged), len(rows))
        with self.rig.moves.load(self.rig.store, leaves, rows) as loading:
            if whole < len(rows):
                with pytest.raises((NotFound, Corrupt)):
                    loading.take(0)
            elif reads:
                for layer in range(4):
                    loading.take(layer)
                    self.looked += [
                        (
                            self.rig.device.read(self.rig.pool.leaf(row, layer // 2)),
                            self.rig.group(first + i, layer // 2),
                        )
                        for i, row in enumerate(rows)
                    ]
            assert loading.finish() == whole
        self.give(rows[whole:])
        for i, row in enumerate(rows[:whole]):
            self.hold(row, f"block {first + i}", self.rig.bytes[first + i], named)

    @rule(first=st.integers(0, BLOCKS - 1), reads=st.integers(1, 3))
    def load_in_vain(self, first: int, reads: int) -> None:
        """The store fails in the middle."""
        leaves, store = self.rig.leaves[first : first + 2], self.rig.store
        rows = self.take(len(leaves))
        if rows:
            store.fails_at = store.reads + reads
            with self.rig.moves.load(store, leaves, rows) as loading:
                pass
            assert isinstance(loading.error, OSError) or loading.limit <= len(rows)
            store.fails_at = 0
            self.give(rows)

    @rule(at=st.integers(0, BLOCKS - 1), group=st.integers(0, 1))
    def damage(self, at: int, group: int) -> None:
        if at not in self.damaged and len(self.damaged) < 2:
            self.damaged.add(at)
            self.rig.store.damage(self.rig.leaves[at][group])

    @precondition(lambda self: self.below.host)
    @rule()
    def restore(self) -> None:
        rows = self.take(1)
        if rows and self.below.host:
            name = next(iter(self.below.host))
            host = self.below.host.pop(name)
            with self.rig.moves.restore([(host, rows[0])]) as loading:
                host.close()
                assert loading.finish() == 1
            self.hold(rows[0], name, self.texts[name], named=True)
        else:
            self.give(rows)

    @precondition(lambda self: self.held)
    @rule(at=st.integers(0, 20))
    def share(self, at: int) -> None:
        row, name = self.held[at % len(self.held)]
        self.held.append((self.rig.pool.retain(row), name))

    @precondition(lambda self: self.below.kept)
    @rule(at=st.integers(0, 20))
    def use_again(self, at: int) -> None:
        row = self.below.kept.pop(at % len(self.below.kept))
        self.held.append((self.rig.pool.retain(row), self.below.names[row]))

    @precondition(lambda self: self.held)
    @rule(at=st.integers(0, 20))
    def let_go(self, at: int) -> None:
        self.rig.pool.release(self.held.pop(at % len(self.held))[0])

    @precondition(lambda self: self.held)
    @rule()
    def let_all_go(self) -> None:
        while self.held:
            self.let_go(0)

    @precondition(lambda self: self.held and self.rig.moves.host.used < HOST_BLOCKS)
    @rule(at=st.integers(0, 20))
    def copy_out(self, at: int) -> None:
        row, name = self.held[at % len(self.held)]
        saved = self.rig.moves.save(row)
        assert self.rig.host_bytes(saved) == self.texts[name]
        saved.close()

    @rule(sequence=st.integers(0, 1))
    def look(self, sequence: int) -> None:
        """A kernel reads all rows of a sequence, by its block table."""
        rows = [row for row, _ in self.held]
        self.rig.tables.set(sequence, rows)
        self.looked += [(self.rig.look(row), self.texts[name]) for row, name in self.held]
        table = self.rig.tables.tensor[sequence, : len(rows)]
        self.looked.append((self.rig.device.read(table), b"".join(row.to_bytes(4, "little") for row in rows)))

    @precondition(lambda self: self.below.host)
    @rule(at=st.integers(0, 5))
    def look_below(self, at: int) -> None:
        name = sorted(self.below.host)[at % len(self.below.host)]
        assert self.rig.host_bytes(self.below.host[name]) == self.texts[name]

    @invariant()
    def it_adds_up(self) -> None:
        if not hasattr(self, "rig"):
            return
        users = Counter(row for row, _ in self.held)
        assert [self.rig.pool.users(row) for row in range(ROWS)] == [users[row] for row in range(ROWS)]
        assert self.rig.pool.check_integrity() == []
        assert self.rig.pool.used_blocks == len(users)
        assert self.rig.pool.kept_blocks == len(self.below.kept)
        assert self.rig.moves.ring.used == 0
        assert self.rig.moves.host.used == len(self.below.host)
        assert self.rig.device.violations == []

    @invariant()
    def what_was_seen_is_right(self) -> None:
        for seen, expected in getattr(self, "looked", []):
            assert seen in ([], [expected])

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.look(0)
            self.rig.device.drain()
            assert all(seen == [expected] for seen, expected in self.looked)


TestMoves = MovesMachine.TestCase
TestMoves.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_a_full_pool_sends_down_what_nobody_uses_and_nobody_waits() -> None:
    """The control: with no room below, what makes way is lost, and what has users never goes."""
    for host_blocks in (1, 0):
        rig = Rig(rows=2, host_blocks=host_blocks)
        below = Below(rig)
        rig.pool.attach(below)
        rows = [rig.pool.allocate() for _ in range(2)]
        texts = [rig.fill(row, row + 1) for row in rows]
        below.names = {row: f"row {row}" for row in rows}
        rig.pool.release(rows[1])
        taken = rig.pool.allocate()
        assert taken == rows[1]
        with rig.moves.load(rig.store, rig.leaves[:1], [taken]) as loading:
            assert loading.finish() == 1
        assert rig.device.host_waits == []
        seen = [rig.look(row) for row in rows]
        assert list(below.host) == ["row 1"] * host_blocks
        assert [rig.host_bytes(host) for host in below.host.values()] == texts[1:] * host_blocks
        rig.device.drain()
        assert seen == [[texts[0]], [rig.bytes[0]]]
        with pytest.raises(TierFull):
            rig.pool.allocate()
        assert rig.device.violations == []
