"""Every block is hashed before it counts: quick hashes as it comes, slow ones of large blocks on other threads."""

from collections.abc import Iterator, Sequence

import pytest

from cyberkv.benchmarks import made_up
from cyberkv.cybergraph.chain import closure
from cyberkv.cybergraph.cid import Buffer, Cid, HashName
from cyberkv.cybergraph.errors import DigestMismatch
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.staging import Room
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.transfer import fetch, source
from tests.contracts.store_peer import StorePeer


class Altering(StorePeer):
    """Changes the last bit of one block."""

    def __init__(self, origin: MemoryStore, victim: Cid) -> None:
        super().__init__(origin)
        self.victim = victim

    def read_many(self, cids: Sequence[Cid], room: Room) -> Iterator[tuple[Cid, Buffer]]:
        for cid, data in super().read_many(cids, room):
            altered = bytes(data[:-1]) + bytes([data[-1] ^ 1]) if cid == self.victim else data
            yield cid, altered


def recorded(hash_name: HashName) -> tuple[MemoryStore, Cid]:
    """Two blocks of eight leaves, of 256 KiB each."""
    origin = MemoryStore()
    return origin, made_up.record(origin, 2 * made_up.BLOCK_BYTES, leaf_bytes=256 << 10, leaf_hash=hash_name)


@pytest.mark.parametrize("hash_name", ["sha2-256", "blake3"])
def test_an_altered_block_of_any_size_and_hash_is_refused(index: Index, hash_name: HashName) -> None:
    origin, root = recorded(hash_name)
    for victim in closure(origin, root):
        store = MemoryStore()
        with pytest.raises(DigestMismatch) as caught:
            fetch(store, index, root, [Altering(origin, victim)])
        assert caught.value.data["cid"] == str(victim)
        assert not store.has(victim)
        assert all(store.get(cid) == origin.get(cid) for cid in store.cids())
        assert not store.has(root)
    honest = MemoryStore()
    fetch(honest, index, root, [StorePeer(origin)])
    assert set(honest.cids()) == set(closure(origin, root))


def test_what_came_before_the_altered_block_is_kept(index: Index) -> None:
    for hash_name in ("sha2-256", "blake3"):
        origin, root = recorded(hash_name)
        leaves = [cid for cid in closure(origin, root) if cid.codec == "raw"]
        store = MemoryStore()
        with pytest.raises(DigestMismatch):
            fetch(store, index, root, [Altering(origin, leaves[12])])
        assert [cid for cid in leaves if store.has(cid)] == leaves[:12]


def test_only_large_blocks_of_a_slow_hash_go_to_other_threads() -> None:
    small, large = bytes(source.SMALL_BYTES), bytes(source.SMALL_BYTES + 1)
    at_once = [
        source._at_once(Cid.of(data, "raw", hash_name), data)
        for data in (small, large)
        for hash_name in ("sha2-256", "blake3")
    ]
    assert at_once == [True, True, False, True]
