"""Any sequence of operations on a store does what it does on a dictionary, across closing and damage."""

import shutil
import tempfile
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import BlockNotFound, DigestMismatch
from cyberkv.cybergraph.store import DiskStore, MemoryStore, Store, slab
from tests.contracts.disk import flip

NUMBERS = st.integers(0, 39)


def block(number: int) -> tuple[Cid, bytes]:
    """Blocks of four slot sizes, and nodes."""
    data = number.to_bytes(2, "big") * (1 + 1900 * (number % 4))
    return Cid.of(data, "dag-cbor" if number % 5 == 0 else "raw", "blake3" if number % 3 else "sha2-256"), data


class StoreMachine(RuleBasedStateMachine):
    """The oracle holds plain bytes; the store may only differ by saying that a block is damaged."""

    def __init__(self) -> None:
        super().__init__()
        self.oracle: dict[Cid, bytes] = {}
        self.damaged: set[Cid] = set()
        self.store = self.open()

    def open(self) -> Store:
        return MemoryStore()

    @rule(numbers=st.lists(NUMBERS, max_size=12), hashed=st.booleans())
    def put(self, numbers: list[int], hashed: bool) -> None:
        made = [block(number) for number in numbers]
        new = {cid for cid, _ in made} - self.oracle.keys()
        healed = {cid for cid, _ in made} & self.damaged & set(self.store.missing(self.damaged))
        assert self.store.put_many(made, hashed=hashed) == len(new | healed)
        self.oracle.update(made)
        self.damaged -= healed

    @rule(numbers=st.lists(NUMBERS, max_size=6))
    def delete(self, numbers: list[int]) -> None:
        cids = [block(number)[0] for number in numbers]
        assert self.store.delete_many(cids) == len(self.oracle.keys() & set(cids))
        for cid in cids:
            self.oracle.pop(cid, None)
            self.damaged.discard(cid)

    @rule(number=NUMBERS)
    def get(self, number: int) -> None:
        cid, data = block(number)
        if cid not in self.oracle:
            with pytest.raises(BlockNotFound):
                self.store.get(cid)
        elif cid in self.damaged:
            with pytest.raises(DigestMismatch):
                self.store.get(cid)
        else:
            assert self.store.get(cid) == data

    @rule(numbers=st.lists(NUMBERS, max_size=12))
    def get_into(self, numbers: list[int]) -> None:
        made = [(cid, data) for cid, data in map(block, numbers) if cid in self.oracle.keys() - self.damaged]
        out = [bytearray(len(data)) for _, data in made]
        self.store.get_into([cid for cid, _ in made], [memoryview(each) for each in out])
        assert out == [data for _, data in made]

    @invariant()
    def same_blocks(self) -> None:
        listed = list(self.store.cids())
        assert len(listed) == len(set(listed))
        assert set(listed) == self.oracle.keys()
        assert set(self.store.missing(self.oracle)) <= self.damaged
        sound = self.oracle.keys() - self.damaged
        assert {cid: self.store.size_bytes(cid) for cid in sound} == {cid: len(self.oracle[cid]) for cid in sound}
        assert list(self.store.check()) == []

    def teardown(self) -> None:
        self.store.close()


class DiskStoreMachine(StoreMachine):
    """Two handles on slabs of a few slots, so that reuse, new files and another writer's slots come up all the time."""

    slab_bytes: ClassVar = 8 * 4096

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp())
        super().__init__()
        self.other = self.open()

    def open(self) -> Store:
        return DiskStore(self.path)

    @rule()
    def use_the_other(self) -> None:
        self.store, self.other = self.other, self.store

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.open()

    @precondition(lambda self: self.oracle)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        cid = data.draw(st.sampled_from(sorted(self.oracle.keys())))
        if cid not in self.damaged and self.oracle[cid]:
            assert isinstance(self.store, DiskStore)
            flip(self.store, cid)
            self.damaged.add(cid)

    @invariant()
    def same_room(self) -> None:
        """What the handle that wrote last counts is what the other one finds by looking."""
        assert isinstance(self.store, DiskStore)
        assert isinstance(self.other, DiskStore)
        slots = sum(place.slab.slot_bytes for _, place in self.store.leaves())
        with self.store._database.read() as txn:
            slots += self.store._catalog.node_bytes(txn)
        assert self.store.used_bytes() == self.other.used_bytes() == slots

    def teardown(self) -> None:
        super().teardown()
        self.other.close()
        shutil.rmtree(self.path)


TestMemoryStore = StoreMachine.TestCase


class TestDiskStore(DiskStoreMachine.TestCase):
    @pytest.fixture(autouse=True)
    def small_slabs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(slab, "SLAB_BYTES", DiskStoreMachine.slab_bytes)


TestDiskStore.settings = settings(max_examples=40, stateful_step_count=25, suppress_health_check=[HealthCheck.too_slow])
