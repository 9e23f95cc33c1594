from pathlib import Path

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import Refused
from cyberkv.cybergraph.store import CountingStore, MemoryStore, ReadOnlyStore, Store
from cyberkv.cybergraph.store.wrap import DraftStore
from tests.contracts.store import StoreContract
from tests.contracts.synthetic import blocks


class TestMemoryStore(StoreContract):
    def make(self, path: Path) -> Store:
        return MemoryStore()

    def damage(self, store: Store, cid: Cid) -> None:
        assert isinstance(store, MemoryStore)
        data = bytearray(store._blocks[cid])
        data[0] ^= 1
        store._blocks[cid] = bytes(data)


class TestCountingStore(TestMemoryStore):
    def make(self, path: Path) -> Store:
        return CountingStore(MemoryStore())

    def damage(self, store: Store, cid: Cid) -> None:
        assert isinstance(store, CountingStore)
        super().damage(store.inner, cid)

    def test_counts(self) -> None:
        store = CountingStore(MemoryStore())
        made = blocks(3, 8)
        store.put_many(made)
        store.put_many(made)
        store.get(made[0][0])
        store.get_into([made[1][0], made[2][0]], [memoryview(bytearray(8)) for _ in range(2)])
        store.has(made[0][0])
        store.missing([made[0][0]])
        assert store.counts == {
            "put_many": 2, "blocks_put": 6, "bytes_put": 48, "get": 1, "get_into": 1, "blocks_got": 3,
            "bytes_got": 24, "has": 1, "missing": 1,
        }  # fmt: skip


class TestDraftStore(TestMemoryStore):
    def make(self, path: Path) -> Store:
        return DraftStore(MemoryStore())

    def damage(self, store: Store, cid: Cid) -> None:
        assert isinstance(store, DraftStore)
        super().damage(store.drafts, cid)

    def test_the_store_below_is_read_and_stays_as_it_is(self) -> None:
        inner, (below, draft, absent) = MemoryStore(), blocks(3, 8)
        inner.put(*below)
        store = DraftStore(inner)
        assert store.put_many([below, draft]) == 1
        assert list(inner.cids()) == [below[0]]
        out = [bytearray(8), bytearray(8)]
        store.get_into([draft[0], below[0]], [memoryview(each) for each in out])
        assert [bytes(each) for each in out] == [draft[1], below[1]]
        assert [store.get(cid) for cid, _ in (below, draft)] == [below[1], draft[1]]
        assert store.missing([below[0], draft[0], absent[0]]) == [absent[0]]
        assert sorted(store.cids()) == sorted([below[0], draft[0]])
        assert store.delete_many([below[0], draft[0]]) == 1
        assert list(store.cids()) == [below[0]]


def test_a_read_only_store_reads_and_refuses_writes() -> None:
    inner = MemoryStore()
    (cid, data), (other, more) = blocks(2)
    inner.put(cid, data)
    store = ReadOnlyStore(inner)
    assert store.get(cid) == data
    for attempt in (
        lambda: store.put(other, more),
        lambda: store.put_many([]),
        lambda: store.delete_many([cid]),
    ):
        with pytest.raises(Refused):
            attempt()
    assert list(inner.cids()) == [cid]
    inner.put(other, more)  # the control
    assert store.get(other) == more
