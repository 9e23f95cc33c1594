"""A conversation sealed and opened again: nothing is lost, nothing shows, and nothing fits elsewhere."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cyberkv.cybergraph import staging
from cyberkv.cybergraph.access import ContentKey, OpenedTable, SealedPeer, Sealing
from cyberkv.cybergraph.access import sealing as sealing_module
from cyberkv.cybergraph.chain import closure, load_root, walk
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import AuthFailed, BlockNotFound, DigestMismatch, LimitExceeded, MalformedNode
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.nodes import PinSet, decode_node
from cyberkv.cybergraph.peers import CarFilePeer
from cyberkv.cybergraph.prefix import prefix_keys
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.transfer import fetch
from tests.access.sealed import ISSUER, KEY, LINEAGE, publish
from tests.contracts.store_peer import StorePeer
from tests.wire.synthetic import BLOCK_SIZE, MODEL, contents, conversation, record


def everything(published: MemoryStore) -> bytes:
    return b"".join(published.get(cid) for cid in published.cids())


@pytest.mark.parametrize(("blocks", "tail_tokens"), [(5, 2), (0, 3), (1, 0), (300, 1), (513, 3)])
@pytest.mark.parametrize("alg", [1, 2])
def test_what_is_opened_is_what_was_sealed(index: Index, blocks: int, tail_tokens: int, alg: int) -> None:
    home, root = conversation(blocks=blocks, tail_tokens=tail_tokens)
    published = publish(home, root, alg=alg)
    elsewhere = MemoryStore()
    peer = SealedPeer(StorePeer(published.store), published.table())
    fetch(elsewhere, index, published.table().root, [peer])
    assert contents(elsewhere, root) == contents(home, root)
    assert set(closure(elsewhere, root)) == set(elsewhere.cids())


def test_everything_is_reached_from_the_root_and_pinned_with_it(index: Index) -> None:
    home, root = conversation(blocks=300)
    published = publish(home, root)
    reached = list(closure(published.store, published.root))
    assert set(reached) == set(published.store.cids())
    pins = [decode_node(published.store.get(cid)) for cid in reached if cid.codec == "dag-cbor"]
    listed = {cid for pin in pins if isinstance(pin, PinSet) for cid in pin.links}
    assert {cid for cid in reached if cid.codec == "raw"} <= listed
    assert all(list(pin.links) == sorted(pin.links) for pin in pins if isinstance(pin, PinSet))


def test_an_outsider_finds_no_trace_of_the_plaintext() -> None:
    home, root = conversation(blocks=40, tail_tokens=3, seed="a title that must not be seen")
    published = publish(home, root)
    seen = everything(published.store) + b"".join(published.store.cids())
    whole = load_root(home, root)
    for cid in closure(home, root):
        data = home.get(cid)
        for trace in (cid, cid.digest, data[:64], data[-64:]):
            assert trace not in seen
    tokens = [token for step in walk(home, whole) for token in step.block.tokens]
    for key in prefix_keys(whole.model, tokens, BLOCK_SIZE):
        assert key not in seen
    assert whole.title.encode() not in seen
    assert KEY.reveal() not in seen
    plain = b"".join(home.get(cid) for cid in closure(home, root))  # the control: the same search finds what is public
    assert all(cid in plain for cid in whole.segments)


def test_leaves_of_tail_and_blocks_have_one_size() -> None:
    home, root = conversation(blocks=7, tail_tokens=3)
    plain_sizes = {len(home.get(cid)) for cid in closure(home, root) if cid.codec == "raw"}
    assert len(plain_sizes) > 2
    published = publish(home, root)
    table = published.table()
    leaves = [leaf for cid in closure(home, root) if cid.codec == "raw" and (leaf := cid)]
    for segment in table.conversation.segments:
        table.learn(segment, [published.store.get(page) for page in table.unread_pages(segment)])
    places = [table.place(leaf) for leaf in leaves]
    assert len({len(published.store.get(place.sealed)) for place in places if place is not None}) == 1
    assert None not in places


def test_the_same_key_gives_the_same_blocks_and_another_key_none_of_them() -> None:
    home, root = conversation(blocks=30)
    first, again, other = (publish(home, root, key=key) for key in (KEY, KEY, ContentKey(bytes(32))))
    assert first.sealed.manifest == again.sealed.manifest
    assert first.sealed.pinset == again.sealed.pinset
    assert not set(first.store.cids()) & set(other.store.cids())


def test_a_longer_conversation_shares_the_pages_of_full_segments() -> None:
    home = MemoryStore()
    short, long = (publish(home, record(home, blocks=blocks)) for blocks in (256, 300))
    new = set(long.store.cids()) - set(short.store.cids())
    assert len(new) < 44 * 2 + 12
    assert len(set(short.store.cids()) & set(long.store.cids())) >= 256 * 2 + 1


def test_pages_are_closed_at_a_size(monkeypatch: pytest.MonkeyPatch, index: Index) -> None:
    monkeypatch.setattr(sealing_module, "PAGE_CONTENT_BYTES", 4000)
    home, root = conversation(blocks=300)
    published = publish(home, root)
    table = published.table()
    assert all(len(table.unread_pages(segment)) > 2 for segment in table.conversation.segments)
    elsewhere = MemoryStore()
    fetch(elsewhere, index, root, [SealedPeer(StorePeer(published.store), table)])
    assert contents(elsewhere, root) == contents(home, root)


def test_too_many_pages_are_refused_before_anything_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing_module, "MAX_SEALED_PAGES", 1)
    home, root = conversation(blocks=300)
    with pytest.raises(LimitExceeded):
        publish(home, root)


def test_a_damaged_leaf_at_home_is_not_sealed() -> None:
    home, root = conversation(blocks=30)
    leaf = next(cid for cid in closure(home, root) if cid.codec == "raw")
    home.put_many([(leaf, b"x" * len(home.get(leaf)))], hashed=True)
    home.delete_many([leaf])
    with pytest.raises(BlockNotFound):
        publish(home, root)


def test_the_wrong_key_opens_nothing() -> None:
    home, root = conversation()
    published = publish(home, root)
    with pytest.raises(AuthFailed):
        replace(published, key=ContentKey(bytes(32))).table()


def test_a_lying_peer_is_told_from_a_publisher_who_sealed_wrongly() -> None:
    home, root = conversation()
    published = publish(home, root)
    table = published.table()
    segment = table.conversation.segments[0]
    table.learn(segment, [published.store.get(page) for page in table.unread_pages(segment)])
    leaves = [leaf for part in table.parts(segment) for leaf in part.leaves.values()]
    first, second = (table.place(leaf) for leaf in leaves[:2])
    assert first is not None
    assert second is not None
    data = published.store.get(first.sealed)
    assert table.open(first, data, lambda size: memoryview(bytearray(size)))
    for bad in (data[:-1], data + b"\0", bytes([data[0] ^ 1]) + data[1:], published.store.get(second.sealed)):
        with pytest.raises(DigestMismatch):
            table.open(first, bad, lambda size: memoryview(bytearray(size)))
        renamed = first._replace(sealed=Cid.of(bad, "raw", "sha2-256"))
        with pytest.raises(AuthFailed):
            table.open(renamed, bad, lambda size: memoryview(bytearray(size)))


def test_pages_in_another_order_are_refused() -> None:
    home, root = conversation(blocks=300)
    published = publish(home, root)
    table = published.table()
    first, second = table.conversation.segments
    swapped = [published.store.get(page) for page in table.unread_pages(second)]
    with pytest.raises(MalformedNode):
        table.learn(first, swapped)


def test_streams_and_single_blocks_give_the_same(index: Index, tmp_path: Path) -> None:
    from cyberkv.cybergraph.car import write_car

    home, root = conversation(blocks=300)
    published = publish(home, root)
    with (tmp_path / "sealed.car").open("wb") as file:
        blocks = ((cid, published.store.get(cid)) for cid in closure(published.store, published.root))
        write_car(file, [published.root], blocks)
    elsewhere = MemoryStore()
    with CarFilePeer(tmp_path / "sealed.car") as car:
        report = fetch(elsewhere, index, root, [SealedPeer(car, published.table())])
    assert contents(elsewhere, root) == contents(home, root)
    assert report.refused == ()


def test_a_peer_that_lacks_some_is_helped_out_by_another(index: Index) -> None:
    home, root = conversation(blocks=30)
    published = publish(home, root)
    cids = sorted(cid for cid in published.store.cids() if cid.codec == "raw")
    half = MemoryStore()
    half.put_many((cid, published.store.get(cid)) for cid in published.store.cids() if cid not in cids[::2])
    elsewhere = MemoryStore()
    table = published.table()
    with pytest.raises(BlockNotFound):
        fetch(elsewhere, index, root, [SealedPeer(StorePeer(half), table)])
    fetch(elsewhere, index, root, [SealedPeer(StorePeer(half), table), SealedPeer(StorePeer(published.store), table)])
    assert contents(elsewhere, root) == contents(home, root)


def test_a_manifest_for_another_model_is_refused() -> None:
    home, root = conversation()
    published = publish(home, root)
    assert published.table().model == MODEL
    with pytest.raises(AuthFailed):
        OpenedTable(published.sealed, published.key, published.store.get(published.sealed.manifest)[:-1])


def sealing_of(home: MemoryStore, cid: Cid) -> Sealing:
    commitment = KEY.commitment(ISSUER.public().signing, LINEAGE, 1)
    return Sealing(home, load_root(home, cid), MODEL, KEY, commitment, 1)


def make_batches_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many batches, in buffers that have to take turns."""
    monkeypatch.setattr(sealing_module, "BATCH_BYTES", 64 << 10)
    monkeypatch.setattr(sealing_module, "CHUNK_BYTES", 16 << 10)
    monkeypatch.setattr(sealing_module, "HELD_BYTES", 64 << 10)
    monkeypatch.setattr(staging, "MAX_LEAF_BYTES", 4096)


def test_memory_that_takes_turns_holds_what_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    home, root = conversation(blocks=300)
    expected = {cid for cid in publish(home, root).store.cids() if cid.codec == "raw"}  # the control: all fits at once
    make_batches_small(monkeypatch)
    sealed, held = [], []
    for run in sealing_of(home, root).blocks():
        held = [*held[-2:], run]
        sealed += [cid for cid, data in run if cid.codec == "raw" and cid == Cid.of(data, "raw", "sha2-256")]
    assert {*sealed} == expected
    assert len(sealed) * 4096 > 4 * (4 * 64 << 10), "more than all buffers hold, several times"


def test_whoever_stops_early_leaves_no_thread_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    make_batches_small(monkeypatch)
    home, root = conversation(blocks=300)
    before = threading.active_count()
    blocks = sealing_of(home, root).blocks()
    kept = next(blocks)
    blocks.close()  # type: ignore[attr-defined]
    assert kept
    assert threading.active_count() == before
    leaf = [cid for cid in closure(home, root) if cid.codec == "raw"][-20]
    home.delete_many([leaf])
    with pytest.raises(BlockNotFound):
        for _ in sealing_of(home, root).blocks():
            pass
    assert threading.active_count() == before
