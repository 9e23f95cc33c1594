"""Any sequence of operations, some of which never end, does to a store what the finished ones do to a dictionary."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from cyberkv.cybergraph.store import DiskStore, Store, slab
from tests.faults.operations import Operations
from tests.faults.syscalls import KILL, at, run
from tests.laws import test_store as laws

NUMBERS = st.lists(laws.NUMBERS, min_size=1, max_size=12)
BLOCKS = NUMBERS.map(lambda numbers: tuple(map(laws.block, numbers)))


class Crash(BaseException):
    """Stands for the end of the process: nothing in the store may catch it."""


class CrashMachine(laws.DiskStoreMachine):
    """The store of the laws, with operations that stop at one of their steps; the store is then opened anew."""

    def __init__(self) -> None:
        self.left: int | None = None
        """Steps to go before the crash."""
        super().__init__()

    def open(self) -> Store:
        return DiskStore(self.path, on_step=self.on_step)

    def on_step(self, _: str) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Crash

    @rule(numbers=NUMBERS, steps=st.integers(0, 11))
    def put_and_crash(self, numbers: list[int], steps: int) -> None:
        made = {cid: data for cid, data in map(laws.block, numbers) if cid not in self.damaged}
        new = made.keys() - self.oracle.keys()
        crashed = self.crashes(lambda: self.store.put_many(made.items()), steps)
        here = {cid for cid in new if self.store.has(cid)}
        assert here == new or (crashed and not here)  # a batch is here whole or not at all
        self.oracle |= {cid: made[cid] for cid in here}

    @rule(numbers=NUMBERS, steps=st.integers(0, 2))
    def delete_and_crash(self, numbers: list[int], steps: int) -> None:
        cids = {laws.block(number)[0] for number in numbers}
        held = cids & self.oracle.keys()
        crashed = self.crashes(lambda: self.store.delete_many(cids), steps)
        here = held & set(self.store.cids())
        assert not here or (crashed and here == held)
        for cid in cids - here:
            self.oracle.pop(cid, None)
            self.damaged.discard(cid)

    def crashes(self, work: Callable[[], object], steps: int) -> bool:
        self.left = steps
        try:
            work()
        except Crash:
            self.store.close()
            self.left = None
            self.store = self.open()
            return True
        self.left = None
        return False


class TestCrashes(CrashMachine.TestCase):
    @pytest.fixture(autouse=True)
    def small_slabs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(slab, "SLAB_BYTES", CrashMachine.slab_bytes)


TestCrashes.settings = settings(max_examples=15, stateful_step_count=25, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.slow
@settings(max_examples=80)
@given(
    work=st.lists(st.tuples(st.booleans(), BLOCKS), min_size=1, max_size=8).map(tuple).map(Operations),
    kill_at=st.integers(0, 100),
)
def test_kills_among_any_operations(work: Operations, kill_at: int) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        ended = run(work, folder, at(kill_at, KILL))
        done = len(ended.said)
        assert ended.killed or (ended.exit_code == 0 and done == len(work.steps))
        with DiskStore(folder / "store") as store:
            found = {cid: store.get(cid) for cid in store.cids()}
            assert list(store.check()) == []
        assert found in (work.after(done), work.after(done + 1))
    finally:
        shutil.rmtree(folder)
