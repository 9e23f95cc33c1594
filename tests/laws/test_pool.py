"""The pool against a plain list: rows are shared by count, never handed out twice, and all come back."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cyberkv.cybergraph.errors import TierFull
from cyberkv.runtime.geometry import Geometry
from cyberkv.runtime.pool import Pool

CAPACITY = 6


class PoolMachine(RuleBasedStateMachine):
    """Sequences allocate, fork (sharing a prefix of rows), write and free; the oracle keeps each one's content."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(Geometry(2, 1, 2, block_size=2, layers_per_leaf=1, dtype="f32"), CAPACITY)
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
        try:
            row = self.pool.allocate()
        except TierFull:
            assert len({row for table in self.tables for row in table}) == CAPACITY
            return
        assert all(row not in table for table in self.tables)
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
        for row in self.tables.pop(at):
            self.pool.release(row)
        self.contents.pop(at)

    @invariant()
    def every_sequence_reads_what_it_wrote(self) -> None:
        for table, content in zip(self.tables, self.contents, strict=True):
            for row, stamp in zip(table, content, strict=True):
                assert (self.pool.rows[row] == stamp).all()
                assert b"".join(map(bytes, self.pool.leaves(row))) == self.pool.rows[row].numpy().tobytes()

    @invariant()
    def rows_in_use_are_those_of_the_tables(self) -> None:
        assert self.pool.used_blocks == len({row for table in self.tables for row in table})


TestPool = PoolMachine.TestCase
