from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberkv.cybergraph.car import car_header, car_section
from cyberkv.cybergraph.chain import block_cids, build_root, closure, load_root, tokens
from cyberkv.cybergraph.cid import Buffer, Cid
from cyberkv.cybergraph.errors import (
    BlockNotFound,
    CyberKVError,
    DigestMismatch,
    TruncatedCar,
)
from cyberkv.cybergraph.index import UNKNOWN_DOMAIN, Index, IndexEntry
from cyberkv.cybergraph.nodes import EMPTY_TAIL, Block, links
from cyberkv.cybergraph.peers import CarFilePeer
from cyberkv.cybergraph.prefix import prefix_keys
from cyberkv.cybergraph.store import DiskStore, MemoryStore, Store
from cyberkv.cybergraph.transfer import fetch
from tests.contracts.disk import flip
from tests.contracts.progress import Counter
from tests.contracts.store_peer import StorePeer
from tests.unit.test_carcontent import car, version_2
from tests.wire.synthetic import (
    BLOCK_SIZE,
    LAYERS,
    MODEL,
    ROW_BYTES,
    contents,
    conversation,
    put_leaves,
    record,
)


class ChildrenFirst(MemoryStore):
    """Fails on a node whose links are not here yet, and notes the size of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_bytes: list[int] = []

    def put_many(self, blocks: Iterable[tuple[Cid, Buffer]], *, hashed: bool = False) -> int:
        batch = list(blocks)
        self.batch_bytes.append(sum(len(data) for _, data in batch))
        for cid, data in batch:
            if cid.codec == "dag-cbor":
                assert self.missing(links(data)) == [], "a parent was stored before its children"
            super().put_many([(cid, data)], hashed=hashed)
        return len(batch)


@pytest.fixture
def car_of(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(data: bytes) -> Path:
        path = tmp_path / "some.car"
        path.write_bytes(data)
        return path

    return write


def sections(store: Store, root: Cid) -> list[bytes]:
    """Header and blocks in the order that `publish --car` writes: each block followed by its leaves."""
    order = dict.fromkeys(closure(store, root))
    return [car_header([root]), *(car_section(cid, store.get(cid)) for cid in order)]


def test_what_is_fetched_is_what_was_there(index: Index) -> None:
    origin, root = conversation(blocks=7)
    store = ChildrenFirst()
    report = fetch(store, index, root, [StorePeer(origin)])
    assert contents(store, root) == contents(origin, root)
    assert set(store.cids()) == set(closure(origin, root))
    assert tokens(store, load_root(store, root)) == tokens(origin, load_root(origin, root))
    total = len(list(closure(origin, root)))
    assert (report.root, report.blocks_total, report.blocks_had, report.blocks_fetched) == (
        root,
        total,
        0,
        total,
    )
    assert report.bytes_fetched == sum(map(len, contents(origin, root).values()))
    assert report.refused == ()


@pytest.mark.parametrize(("blocks", "tail_tokens"), [(0, 0), (0, 3), (1, 0), (256, 0), (257, 1)])
def test_every_length_of_conversation(index: Index, blocks: int, tail_tokens: int) -> None:
    origin, root = conversation(blocks=blocks, tail_tokens=tail_tokens)
    store = ChildrenFirst()
    fetch(store, index, root, [StorePeer(origin)])
    assert contents(store, root) == contents(origin, root)


def test_what_is_here_already_is_asked_of_nobody(index: Index) -> None:
    store, root = conversation()
    total = len(list(closure(store, root)))
    report = fetch(store, index, root, [])
    assert (report.blocks_had, report.blocks_fetched, report.bytes_fetched) == (total, 0, 0)


@pytest.mark.parametrize("shared", [0, 1, 3, 5])
def test_only_what_is_missing_is_asked_for(index: Index, shared: int) -> None:
    origin, root = conversation(blocks=5)
    store = MemoryStore()
    if shared:
        record(store, blocks=shared, tail_tokens=1)
    had = set(store.cids())
    peer = StorePeer(origin)
    report = fetch(store, index, root, [peer])
    missing = [cid for cid in closure(origin, root) if cid not in had]
    assert sorted(peer.asked) == sorted(missing)
    assert (report.blocks_had, report.blocks_fetched) == (report.blocks_total - len(missing), len(missing))
    assert (report.blocks_had == 0) == (shared == 0)


def test_equal_leaves_are_moved_and_counted_once(index: Index) -> None:
    origin = MemoryStore()
    model = origin.put_node(MODEL)
    kv = put_leaves(origin, "same", BLOCK_SIZE)
    chain: list[Cid] = []
    for at in range(3):
        chain.append(origin.put_node(Block(model, chain[-1] if chain else None, (at,) * BLOCK_SIZE, kv)))
    root = build_root(
        origin, model=model, block_size=BLOCK_SIZE, blocks=chain, tail=EMPTY_TAIL,
        payload_bytes=3 * BLOCK_SIZE * ROW_BYTES * LAYERS,
    )  # fmt: skip
    store, peer = ChildrenFirst(), StorePeer(origin)
    report = fetch(store, index, root, [peer])
    assert len(peer.gave) == len(set(peer.gave)) == report.blocks_total == 3 + 3 + 2


def test_blocks_are_indexed_and_answer_nobody(index: Index) -> None:
    origin, root = conversation(blocks=3)
    store = MemoryStore()
    fetch(store, index, root, [StorePeer(origin)])
    chain = list(block_cids(store, load_root(store, root)))
    keys = list(prefix_keys(MODEL.cid(), tokens(store, load_root(store, root)), BLOCK_SIZE))
    assert index.lookup_chain(keys, "any") == []  # nobody's prompt is answered from what was fetched
    assert [[each.block for each in index.lookup(key)] for key in keys] == [[cid] for cid in chain]
    assert [index.domain_of(block) for block in chain] == [UNKNOWN_DOMAIN] * 3
    assert index.next_block(chain[0], MODEL.cid()) == [chain[1]]
    assert index.heads() == []


def test_a_domain_that_is_known_stays(index: Index) -> None:
    origin, root = conversation(blocks=2)
    first = next(block_cids(origin, load_root(origin, root)))
    key = next(prefix_keys(MODEL.cid(), Block.decode(origin.get(first)).tokens, BLOCK_SIZE))
    index.add_blocks([IndexEntry(key, first, None, MODEL.cid(), "mine")])
    fetch(MemoryStore(), index, root, [StorePeer(origin)])
    assert [index.domain_of(block) for block in block_cids(origin, load_root(origin, root))] == [
        "mine",
        "unknown",
    ]


@pytest.mark.parametrize(("approx", "found"), [("spliced", 0), (None, 5)])
def test_approximate_blocks_are_never_findable(index: Index, approx: str | None, found: int) -> None:
    origin, root = conversation(approx=approx)
    fetch(MemoryStore(), index, root, [StorePeer(origin)])
    assert len(list(index.entries())) == found


def test_progress_adds_up(index: Index) -> None:
    origin, root = conversation(blocks=5)
    store, watcher = MemoryStore(), Counter()
    record(store, blocks=2)
    fetch(store, index, root, [StorePeer(origin)], progress=watcher)
    assert watcher.phases == [("fetch", watcher.blocks, watcher.leaf_bytes)]
    assert watcher.leaf_bytes == load_root(origin, root).bytes


@pytest.mark.parametrize("budget_blocks", [1, 3])
def test_batches_stay_within_the_budget(index: Index, budget_blocks: int) -> None:
    block_bytes = BLOCK_SIZE * ROW_BYTES * LAYERS
    origin, root = conversation(blocks=12)
    store = ChildrenFirst()
    fetch(store, index, root, [StorePeer(origin)], budget_bytes=budget_blocks * block_bytes)
    assert max(store.batch_bytes) < (budget_blocks + 1) * block_bytes
    assert len(store.batch_bytes) > 12 // (budget_blocks + 1)


@pytest.mark.parametrize("stop_at", range(1, 20, 2))
def test_an_interrupted_fetch_goes_on_where_it_stopped(index: Index, stop_at: int) -> None:
    origin, root = conversation(blocks=5)
    store = ChildrenFirst()
    with pytest.raises(KeyboardInterrupt):
        fetch(store, index, root, [StorePeer(origin)], progress=Counter(stop_at))
    kept = set(store.cids())
    assert not store.has(root)
    assert list(index.entries()) == []
    peer = StorePeer(origin)
    fetch(store, index, root, [peer])
    assert set(peer.gave) == set(closure(origin, root)) - kept
    assert len(kept) >= stop_at - 9  # all but the nodes that wait for what is below them


def test_a_car_cut_anywhere_is_incomplete_and_keeps_what_was_sound(
    index: Index, car_of: Callable[[bytes], Path]
) -> None:
    origin, root = conversation(blocks=3)
    pieces = sections(origin, root)
    whole = b"".join(pieces)
    ends = [sum(map(len, pieces[: count + 1])) for count in range(len(pieces))]
    kept_at_most = 0
    for size in [cut for end in ends for cut in (end, end + 7) if cut < len(whole)]:
        store = ChildrenFirst()
        with CarFilePeer(car_of(whole[:size])) as peer, pytest.raises(TruncatedCar):
            fetch(store, index, root, [peer])
        kept = set(store.cids())
        assert not store.has(root)
        before = list(closure(origin, root))[: sum(end <= size for end in ends) - 1]
        assert {cid for cid in before if cid.codec == "raw"} == {cid for cid in kept if cid.codec == "raw"}
        kept_at_most = max(kept_at_most, len(kept))
        rest = StorePeer(origin)
        report = fetch(store, index, root, [rest])
        assert set(rest.gave) == set(closure(origin, root)) - kept
        assert report.blocks_had == len(kept)
        assert contents(store, root) == contents(origin, root)
    assert kept_at_most > 8
    with CarFilePeer(car_of(whole)) as peer:
        assert fetch(MemoryStore(), index, root, [peer]).blocks_had == 0


@given(st.data())
def test_a_car_cut_at_any_byte_is_gone_on_with_from_another_source(data: st.DataObject) -> None:
    origin, root = conversation(blocks=4)
    whole = b"".join(sections(origin, root))
    cut = data.draw(st.integers(len(car_header([root])), len(whole) - 1))
    with TemporaryDirectory() as folder, Index(Path(folder) / "index") as index:
        path = Path(folder) / "cut.car"
        path.write_bytes(whole[:cut])
        store = ChildrenFirst()
        with CarFilePeer(path) as peer, pytest.raises((TruncatedCar, BlockNotFound)):
            fetch(store, index, root, [peer])
        kept = set(store.cids())
        rest = StorePeer(origin)
        report = fetch(store, index, root, [rest])
    assert set(rest.gave) == set(closure(origin, root)) - kept
    assert (report.blocks_had, report.blocks_fetched) == (len(kept), len(rest.gave))
    assert contents(store, root) == contents(origin, root)


def test_a_car_of_version_2_with_blocks_of_others_between(index: Index, car_of: Callable[[bytes], Path]) -> None:
    origin, root = conversation(blocks=3)
    foreign = (bytes.fromhex("1220") + bytes(32), b"dag-pb that nobody checks")
    blocks = [each for own in contents(origin, root).items() for each in (foreign, own)]
    whole = version_2(car([root], blocks))
    store = MemoryStore()
    with CarFilePeer(car_of(whole)) as peer:
        assert fetch(store, index, root, [peer]).refused == ()
    assert contents(store, root) == contents(origin, root)
    with CarFilePeer(car_of(whole[:-1])) as peer, pytest.raises(TruncatedCar):
        fetch(MemoryStore(), index, root, [peer])


def test_a_damaged_car_is_told_from_a_cut_one(index: Index, car_of: Callable[[bytes], Path]) -> None:
    origin, root = conversation(blocks=3)
    whole = b"".join(sections(origin, root))
    store = MemoryStore()
    with (
        CarFilePeer(car_of(whole[:-1] + bytes([whole[-1] ^ 1]))) as peer,
        pytest.raises(DigestMismatch) as caught,
    ):
        fetch(store, index, root, [peer])
    assert not store.has(root)
    assert caught.value.data["count"] == 1
    last = list(closure(origin, root))[-1]
    assert str(last) in str(caught.value)


def test_what_nobody_holds_is_not_found(index: Index) -> None:
    origin, root = conversation()
    for peers in ([], [StorePeer(MemoryStore())], [StorePeer(MemoryStore()), StorePeer(MemoryStore())]):
        store = MemoryStore()
        with pytest.raises(BlockNotFound, match=str(root)):
            fetch(store, index, root, peers)
        assert list(store.cids()) == []
    leaf = list(closure(origin, root))[-1]
    origin.delete_many([leaf])
    with pytest.raises(BlockNotFound, match=str(leaf)) as caught:
        fetch(MemoryStore(), index, root, [StorePeer(origin)])
    assert caught.value.data["missing"] == [str(leaf)]


def test_the_next_peer_gives_what_the_first_lacks(index: Index) -> None:
    origin, root = conversation(blocks=4)
    half = MemoryStore()
    half.put_many(list(contents(origin, root).items())[::2])
    first, second = StorePeer(half), StorePeer(origin)
    store = ChildrenFirst()
    report = fetch(store, index, root, [first, second])
    assert set(first.gave) | set(second.gave) == set(closure(origin, root))
    assert set(first.gave) <= set(half.cids()) < set(closure(origin, root))
    assert contents(store, root) == contents(origin, root)
    assert report.refused == ()


# A root that lies. Everything below hashes right: what is wrong is how the parts go together.


def test_a_damaged_block_of_ones_own_is_said_so(index: Index) -> None:
    store, root = conversation()
    block = next(block_cids(store, load_root(store, root)))
    store.delete_many([block])
    store.put_many([(block, b"\xa0")], hashed=True)
    with pytest.raises(CyberKVError, match=r"damaged"):
        fetch(store, index, root, [])


@pytest.mark.parametrize("of", ["root", "model"])
def test_a_damaged_root_or_model_of_ones_own_is_replaced(index: Index, tmp_path: Path, of: str) -> None:
    theirs, root = conversation()
    node = root if of == "root" else load_root(theirs, root).model
    with DiskStore(tmp_path / "store") as store:
        total = fetch(store, index, root, [StorePeer(theirs)]).blocks_total
        flip(store, node)
        for peers in ([], [StorePeer(MemoryStore())]):
            with pytest.raises(DigestMismatch, match="damaged"):
                fetch(store, index, root, peers)
        report = fetch(store, index, root, [StorePeer(theirs)])
        assert (report.blocks_fetched, report.blocks_had) == (1, total - 1)
        assert store.get(node) == theirs.get(node)
        assert fetch(store, index, root, []).blocks_fetched == 0


def test_a_leaf_that_was_seen_damaged_is_brought_again(index: Index, tmp_path: Path) -> None:
    theirs, root = conversation()
    [leaf, *_] = Block.decode(theirs.get(next(block_cids(theirs, load_root(theirs, root))))).kv
    with DiskStore(tmp_path / "store") as store:
        fetch(store, index, root, [StorePeer(theirs)])
        flip(store, leaf)
        with pytest.raises(DigestMismatch):
            store.get(leaf)
        assert fetch(store, index, root, [StorePeer(theirs)]).blocks_fetched == 1
        assert store.get(leaf) == theirs.get(leaf)
