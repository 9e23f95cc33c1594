"""What every store must do: a store's tests subclass `StoreContract` and say how to make and damage one."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import pytest

from cyberkv.cybergraph.cid import Cid, Codec, HashName
from cyberkv.cybergraph.errors import BlockNotFound, DigestMismatch, LimitExceeded, MalformedBytes
from cyberkv.cybergraph.limits import MAX_LEAF_BYTES, MAX_NODE_BYTES
from cyberkv.cybergraph.nodes import decode_node
from cyberkv.cybergraph.store import Store

from .synthetic import blocks, make_model

FORMS: list[tuple[Codec, HashName]] = [
    ("raw", "blake3"), ("raw", "sha2-256"), ("dag-cbor", "sha2-256"), ("dag-cbor", "blake3"),
]  # fmt: skip
SIZES_BYTES = [0, 1, 4095, 4096, 4097, 245_760, 1 << 20]


class StoreContract(ABC):
    @abstractmethod
    def make(self, path: Path) -> Store: ...

    @abstractmethod
    def damage(self, store: Store, cid: Cid) -> None:
        """Flip a bit of a stored block, going around the store."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        with self.make(tmp_path / "store") as store:
            yield store

    @pytest.mark.parametrize("size_bytes", SIZES_BYTES)
    @pytest.mark.parametrize(("codec", "hash_name"), FORMS)
    def test_what_is_put_comes_back(self, store: Store, codec: Codec, hash_name: HashName, size_bytes: int) -> None:
        data = bytes(range(256)) * (size_bytes // 256) + bytes(size_bytes % 256)
        cid = Cid.of(data, codec, hash_name)
        assert not store.has(cid)
        assert store.size_bytes(cid) is None
        assert store.put(cid, data)
        assert store.get(cid) == data
        assert store.has(cid)
        assert store.size_bytes(cid) == size_bytes
        assert list(store.cids()) == [cid]

    def test_a_block_is_stored_once(self, store: Store) -> None:
        (cid, data), other = blocks(2)
        assert store.put_many([(cid, data), (cid, data)]) == 1
        assert not store.put(cid, data)
        assert store.put_many([(cid, data), other]) == 1
        assert sorted(store.cids()) == sorted([cid, other[0]])

    def test_every_kind_of_buffer(self, store: Store) -> None:
        expected = dict(blocks(3))
        kinds = (bytes, bytearray, memoryview)
        assert store.put_many((cid, kind(data)) for kind, (cid, data) in zip(kinds, expected.items(), strict=True)) == 3
        assert {cid: store.get(cid) for cid in expected} == expected

    def test_a_buffer_may_be_used_again_after_the_call(self, store: Store) -> None:
        cid, data = blocks(1)[0]
        buffer = bytearray(data)
        store.put(cid, buffer)
        buffer[:] = bytes(len(buffer))
        assert store.get(cid) == data

    @pytest.mark.parametrize(("codec", "hash_name"), FORMS)
    def test_bytes_that_do_not_hash_are_refused(self, store: Store, codec: Codec, hash_name: HashName) -> None:
        cid = Cid.of(b"true", codec, hash_name)
        with pytest.raises(DigestMismatch) as caught:
            store.put(cid, b"false")
        assert caught.value.data["cid"] == str(cid)
        assert not store.has(cid)
        assert store.put(cid, b"true")

    def test_a_lie_in_a_batch_is_not_stored(self, store: Store) -> None:
        good, (cid, _) = blocks(2)
        with pytest.raises(DigestMismatch):
            store.put_many([good, (cid, b"false")])
        assert not store.has(cid)

    @pytest.mark.parametrize(("codec", "limit_bytes"), [("raw", MAX_LEAF_BYTES), ("dag-cbor", MAX_NODE_BYTES)])
    def test_size_limits(self, store: Store, codec: Codec, limit_bytes: int) -> None:
        for size_bytes, fits in ((limit_bytes, True), (limit_bytes + 1, False)):
            data = bytes(size_bytes)
            cid = Cid.of(data, codec, "sha2-256")
            if fits:
                assert store.put(cid, data)
            else:
                for hashed in (True, False):
                    with pytest.raises(LimitExceeded):
                        store.put_many([(cid, data)], hashed=hashed)
                assert not store.has(cid)

    def test_what_is_not_here(self, store: Store) -> None:
        for cid in (Cid.of(b"x", "raw", "blake3"), Cid.of(b"x", "dag-cbor", "sha2-256")):
            with pytest.raises(BlockNotFound) as caught:
                store.get(cid)
            assert caught.value.data["cid"] == str(cid)
            assert caught.value.hint
            with pytest.raises(BlockNotFound):
                store.get_into([cid], [memoryview(bytearray(1))])

    @pytest.mark.parametrize("size_bytes", [5, 5000, 245_760])
    def test_a_damaged_leaf_is_never_given(self, store: Store, size_bytes: int) -> None:
        good, bad = blocks(2, size_bytes)
        store.put_many([good, bad])
        self.damage(store, bad[0])
        for _ in range(2):
            with pytest.raises(DigestMismatch) as caught:
                store.get(bad[0])
            assert caught.value.data["cid"] == str(bad[0])
            assert caught.value.hint
            with pytest.raises(DigestMismatch):
                store.get_into([good[0], bad[0]], [memoryview(bytearray(len(good[1]))) for _ in range(2)])
        assert store.get(good[0]) == good[1]

    def test_a_damaged_node_is_never_given(self, store: Store) -> None:
        cid = store.put_node(make_model())
        store.get(cid)
        self.damage(store, cid)
        with pytest.raises(DigestMismatch):
            store.get(cid)

    def test_a_damaged_block_can_be_replaced(self, store: Store) -> None:
        cid, data = blocks(1)[0]
        store.put(cid, data)
        self.damage(store, cid)
        store.delete_many([cid])
        assert store.put(cid, data)
        assert store.get(cid) == data

    def test_only_what_is_damaged_is_dropped(self, store: Store) -> None:
        good, bad = blocks(2, 5000)
        store.put_many([good, bad])
        self.damage(store, bad[0])
        absent = Cid.of(b"absent", "raw", "blake3")
        assert list(store.drop_damaged([good[0], absent, bad[0]])) == [bad[0]]
        assert (store.has(good[0]), store.has(bad[0])) == (True, False)
        store.put(*bad)
        assert store.drop_damaged([bad[0]]) == {}
        assert store.get(bad[0]) == bad[1]

    def test_bulk_reads_fill_the_buffers_given(self, store: Store) -> None:
        stored = [*blocks(40, 5000), *blocks(5, 8192), *blocks(3, 12), (Cid.of(b"", "raw", "blake3"), b"")]
        node = make_model().encode()
        stored.append((make_model().cid(), node))
        store.put_many(stored)
        asked = stored[::-1] + stored[3:9]  # any order, some twice
        out = [bytearray(len(data)) for _, data in asked]
        store.get_into([cid for cid, _ in asked], [memoryview(each) for each in out])
        assert out == [data for _, data in asked]

    def test_large_bulk_reads(self, store: Store) -> None:
        stored = blocks(40, 245_760)
        store.put_many(stored)
        rows = bytearray(40 * 245_760)
        store.get_into(
            [cid for cid, _ in stored],
            [memoryview(rows)[at : at + 245_760] for at in range(0, len(rows), 245_760)],
        )
        assert rows == b"".join(data for _, data in stored)

    @pytest.mark.parametrize("difference", [-1, 1])
    def test_a_leaf_of_another_size_is_refused(self, store: Store, difference: int) -> None:
        cid, data = blocks(1)[0]
        store.put(cid, data)
        with pytest.raises(MalformedBytes) as caught:
            store.get_into([cid], [memoryview(bytearray(len(data) + difference))])
        assert caught.value.data["got"] == len(data)

    def test_missing_keeps_the_order_asked(self, store: Store) -> None:
        made = blocks(6)
        store.put_many(made[::2])
        assert store.missing(cid for cid, _ in reversed(made)) == [cid for cid, _ in reversed(made[1::2])]

    def test_listing_by_prefix(self, store: Store) -> None:
        made = blocks(3000, 8)
        store.put_many(made)
        store.put_node(make_model())
        everything = list(store.cids())
        assert len(everything) == len(set(everything)) == 3001
        for prefix in (b"\x01\x55", b"\x01\x71", made[0][0][:5], made[0][0][:6], bytes(made[0][0])):
            assert sorted(store.cids(prefix)) == sorted(cid for cid in everything if cid.startswith(prefix))
        assert list(store.cids(b"\x02")) == []

    def test_blocks_can_be_added_while_listing(self, store: Store) -> None:
        first, second = blocks(2)
        store.put_many([first])
        for _ in store.cids():
            store.put_many([second])
        assert store.has(second[0])

    def test_deleting(self, store: Store) -> None:
        made = blocks(5)
        model = store.put_node(make_model())
        store.put_many(made)
        gone = [made[1][0], made[3][0], model]
        assert store.delete_many([*gone, Cid.of(b"never", "raw", "blake3")]) == 3
        assert store.missing(cid for cid, _ in made) == gone[:2]
        assert not store.has(model)
        assert store.delete_many(gone) == 0
        assert store.put_many(made) == 2
        assert all(store.get(cid) == data for cid, data in made)

    def test_nodes(self, store: Store) -> None:
        cid = store.put_node(make_model())
        assert cid == make_model().cid()
        assert decode_node(store.get(cid)) == make_model()
        assert store.put_node(make_model("other")) != cid

    def test_a_generator_may_use_the_store(self, store: Store) -> None:
        made = blocks(10)
        assert store.put_many((cid, data) for cid, data in made if not store.has(cid)) == 10
        assert store.put_many((cid, store.get(cid)) for cid, _ in made) == 0

    def test_an_error_in_the_generator_leaves_whole_blocks(self, store: Store) -> None:
        made = blocks(3)

        def failing() -> Iterator[tuple[Cid, bytes]]:
            yield from made
            raise RuntimeError

        with pytest.raises(RuntimeError):
            store.put_many(failing())
        assert all(store.get(cid) == dict(made)[cid] for cid in store.cids())
        store.put_many(made)
        assert store.missing(cid for cid, _ in made) == []

    def test_nothing_to_do(self, store: Store) -> None:
        assert store.put_many([]) == 0
        assert store.delete_many([]) == 0
        assert store.missing([]) == []
        store.get_into([], [])
        assert list(store.check()) == []
