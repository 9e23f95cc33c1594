"""Integrity of a conversation, fault by fault."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cyberkv.cybergraph.chain import block_cids, build_root, closure, load_root, walk
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import BadReference, BlockNotFound
from cyberkv.cybergraph.index import Index, IndexEntry
from cyberkv.cybergraph.integrity import check_integrity
from cyberkv.cybergraph.nodes import EMPTY_TAIL, Block, Segment
from cyberkv.cybergraph.prefix import prefix_keys
from cyberkv.cybergraph.store import MemoryStore
from tests.wire.synthetic import BLOCK_SIZE, MODEL, put_leaves, record


class Spoilt(MemoryStore):
    """A store in which the bytes of blocks can go bad."""

    def spoil(self, cid: Cid) -> None:
        data = self._blocks[cid]
        self._blocks[cid] = bytes([data[0] ^ 1]) + data[1:]


@pytest.fixture
def store() -> Spoilt:
    return Spoilt()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index(tmp_path / "index") as opened:
        yield opened


def fill(index: Index, store: MemoryStore, root: Cid) -> list[IndexEntry]:
    steps = list(walk(store, load_root(store, root)))
    tokens = [token for step in steps for token in step.block.tokens]
    keys = prefix_keys(MODEL.cid(), tokens, BLOCK_SIZE)
    return [
        IndexEntry(key, step.cid, step.block.prev, MODEL.cid(), "here") for key, step in zip(keys, steps, strict=True)
    ]


def test_a_sound_conversation(store: Spoilt, index: Index) -> None:
    root = record(store, blocks=5)
    found = check_integrity(store, index, root)
    everything = list(closure(store, root))
    assert (found.blocks, found.failed) == (len(everything), {})
    assert found.bytes == sum(store.size_bytes(cid) or 0 for cid in everything)
    assert (found.bound, found.indexed) == (5, 0)
    index.add_blocks(fill(index, store, root)[:3])
    assert check_integrity(store, index, root).indexed == 3


def test_every_block_that_goes_bad_is_named(index: Index) -> None:
    sound = MemoryStore()
    for cid in closure(sound, record(sound)):
        store = Spoilt()
        root = record(store)
        store.spoil(cid)
        found = check_integrity(store, index, root)
        assert set(found.failed) == {cid}


def test_every_block_that_is_absent_is_named(index: Index) -> None:
    sound = MemoryStore()
    root, *rest = closure(sound, record(sound))
    for cid in rest:
        store = MemoryStore()
        record(store)
        store.delete_many([cid])
        found = check_integrity(store, index, root)
        assert (found.absent, found.failed) == ([cid], {})
    store = MemoryStore()
    record(store)
    store.delete_many([root])
    with pytest.raises(BlockNotFound):
        check_integrity(store, index, root)


def test_several_faults_are_all_named(store: Spoilt, index: Index) -> None:
    root = record(store)
    leaves = [cid for cid in closure(store, root) if cid.codec == "raw"]
    for leaf in leaves[::2]:
        store.spoil(leaf)
    found = check_integrity(store, index, root)
    assert set(found.failed) == set(leaves[::2])
    assert found.bound == 5


def rebuilt(store: MemoryStore, root: Cid, change: Callable[[Block], Block]) -> Cid:
    """Put a changed block in place of the third one: sound bytes, wrong content."""
    conversation = load_root(store, root)
    blocks = list(block_cids(store, conversation))
    blocks[2] = store.put_node(change(Block.decode(store.get(blocks[2]))))
    return build_root(
        store, model=conversation.model, block_size=BLOCK_SIZE, blocks=blocks, tail=EMPTY_TAIL,
        payload_bytes=conversation.bytes,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("model", {"model": Cid.of(b"other", "dag-cbor", "sha2-256")}),
        ("prev", {"prev": None}),
        ("tokens", {"tokens": (1, 2)}),
    ],
)
def test_a_block_in_the_wrong_place(store: Spoilt, index: Index, field: str, changes: dict[str, object]) -> None:
    root = rebuilt(store, record(store), lambda block: replace(block, **changes))  # type: ignore[arg-type]
    found = check_integrity(store, index, root)
    assert [reason for reason in found.failed.values() if f"'{field}'" in reason]
    assert found.bound == 2


def test_leaves_of_another_size(store: Spoilt, index: Index) -> None:
    root = rebuilt(store, record(store), lambda block: replace(block, kv=put_leaves(store, "x", BLOCK_SIZE - 1)))
    [reason] = check_integrity(store, index, root).failed.values()
    assert "size_bytes" in reason


def test_a_root_whose_numbers_do_not_add_up(store: Spoilt, index: Index) -> None:
    root = record(store, payload_bytes=1)
    assert set(check_integrity(store, index, root).failed) == {root}


def test_a_segment_that_is_something_else(store: Spoilt, index: Index) -> None:
    conversation = load_root(store, record(store))
    assert Segment.decode(store.get(conversation.segments[0]))
    root = store.put_node(replace(conversation, segments=(conversation.model,)))
    assert check_integrity(store, index, root).failed


def test_what_is_no_conversation_is_not_checked(store: Spoilt, index: Index) -> None:
    root = record(store)
    for cid in list(closure(store, root))[1:]:
        with pytest.raises(BadReference, match="not a conversation"):
            check_integrity(store, index, cid)


def test_an_index_that_files_a_block_elsewhere(store: Spoilt, index: Index) -> None:
    root = record(store)
    first, second, *_ = fill(index, store, root)
    index.add_blocks([first._replace(prefix=second.prefix)])
    found = check_integrity(store, index, root)
    assert set(found.failed) == {first.block}
    assert (found.bound, found.indexed) == (5, 0)
