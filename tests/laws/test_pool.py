"""The pool against a plain list: rows are shared by count, kept when they are named, never handed out twice, and all
come back.
"""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cyberkv.cybergraph.errors import TierFull
from cyberkv.runtime.geometry import Geometry
from cyberkv.runtime.pool import Pool

CAPACITY = 6


class Names:
    """A keeper: named rows are kept, and the one that was let go first makes way first."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.named: set[int] = set()
        self.waiting: list[int] = []

    def unused(self, row: int) -> bool:
        if row in self.named:
            self.waiting.append(row)
        return row in self.named

    def evict(self) -> bool:
        if not self.waiting:
            return False
        row = self.waiting.pop(0)
        self.named.remove(row)
        self.pool.drop(row)
        return True


class PoolMachine(RuleBasedStateMachine):
    """Sequences allocate, fork (sharing a prefix of rows), write and free; the oracle keeps each one's content."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(Geometry(2, 1, 2, block_size=2, layers_per_leaf=1, dtype="f32"), CAPACITY)
        self.names = Names(self.pool)
        self.pool.attach(self.names)
        self.kept: dict[int, int] = {}
        """Kept row -> what it holds."""
        self.tables: list[list[int]] = []
        self.contents: list[list[int]] = []
        self.stamp = 0

    @rule()
    def start(self) -> None:
        self.tables.append([])
        self.contents.append([])

    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        if not self.tables:
            return
        at = data.draw(st.integers(0, len(self.tables) - 1))
        free, oldest = CAPACITY - self.pool.used_blocks - self.pool.kept_blocks, self.names.waiting[:1]
        try:
            row = self.pool.allocate()
        except TierFull:
            assert self.kept == {}
            assert len({row for table in self.tables for row in table}) == CAPACITY
            return
        assert all(row not in table for table in self.tables)
        assert [row] == oldest if not free else row not in self.kept
        self.kept.pop(row, None)
        self.stamp += 1
        self.pool.rows[row] = self.stamp
        self.tables[at].append(row)
        self.contents[at].append(self.stamp)

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        if not self.tables:
            return
        at = data.draw(st.integers(0, len(self.tables) - 1))
        cut = data.draw(st.integers(0, len(self.tables[at])))
        self.tables.append([self.pool.retain(row) for row in self.tables[at][:cut]])
        self.contents.append(self.contents[at][:cut])

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        if not self.tables:
            return
        at = data.draw(st.integers(0, len(self.tables) - 1))
        for row, stamp in zip(self.tables.pop(at), self.contents.pop(at), strict=True):
            self.pool.release(row)
            if row in self.names.named and not self.pool.users(row):
                self.kept[row] = stamp

    @rule(data=st.data())
    def name(self, data: st.DataObject) -> None:
        if rows := [row for table in self.tables for row in table]:
            self.names.named.add(data.draw(st.sampled_from(rows)))

    @rule(data=st.data())
    def use_again(self, data: st.DataObject) -> None:
        if not self.kept or not self.tables:
            return
        row, at = data.draw(st.sampled_from(sorted(self.kept))), data.draw(st.integers(0, len(self.tables) - 1))
        self.names.waiting.remove(row)
        self.tables[at].append(self.pool.retain(row))
        self.contents[at].append(self.kept.pop(row))

    @rule()
    def change_keeper(self) -> None:
        self.names = Names(self.pool)
        self.pool.attach(self.names)
        self.kept = {}

    @invariant()
    def every_sequence_reads_what_it_wrote(self) -> None:
        for table, content in zip(self.tables, self.contents, strict=True):
            for row, stamp in zip(table, content, strict=True):
                assert (self.pool.rows[row] == stamp).all()
                assert b"".join(map(bytes, self.pool.leaves(row))) == self.pool.rows[row].numpy().tobytes()

    @invariant()
    def rows_in_use_are_those_of_the_tables(self) -> None:
        rows = [row for table in self.tables for row in table]
        assert self.pool.used_blocks == len(set(rows))
        assert [self.pool.users(row) for row in range(CAPACITY)] == [rows.count(row) for row in range(CAPACITY)]
        assert self.pool.check_integrity() == []

    @invariant()
    def kept_rows_hold_what_they_held(self) -> None:
        assert self.pool.kept_blocks == len(self.kept)
        assert all((self.pool.rows[row] == stamp).all() for row, stamp in self.kept.items())


TestPool = PoolMachine.TestCase


def test_integrity_is_found_wanting() -> None:
    pool = Pool(Geometry(2, 1, 2, block_size=2, layers_per_leaf=1, dtype="f32"), 3)
    row = pool.allocate()
    assert pool.check_integrity() == []
    pool._free.append(row)
    assert pool.check_integrity() != []
    pool._free.remove(row)
    pool._references[row] = -1
    assert pool.check_integrity() != []


def test_a_row_is_given_back_once() -> None:
    pool = Pool(Geometry(2, 1, 2, block_size=2, layers_per_leaf=1, dtype="f32"), 3)
    row = pool.allocate()
    pool.release(row)
    with pytest.raises(RuntimeError, match="no user"):
        pool.release(row)
    assert pool.check_integrity() == []
