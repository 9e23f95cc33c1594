"""The index finds as much as a radix tree of tokens would, down to whole blocks, without being one."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.prefix import prefix_keys
from cyberkv.cybergraph.store import MemoryStore
from tests.contracts.synthetic import BLOCK_SIZE, entries, make_blocks, make_model

MODEL = make_model().cid()


class Radix:
    """A radix tree as caches of engines use it: edges hold runs of tokens and are split where texts part."""

    def __init__(self) -> None:
        self.edges: dict[int, tuple[list[int], Radix]] = {}

    def insert(self, text: Sequence[int]) -> int:
        """Add a text and give the length of its longest known beginning."""
        if not text:
            return 0
        if text[0] not in self.edges:
            self.edges[text[0]] = (list(text), Radix())
            return 0
        run, below = self.edges[text[0]]
        same = next((i for i, (a, b) in enumerate(zip(run, text, strict=False)) if a != b), min(len(run), len(text)))
        if same < len(run):  # in the middle of an edge
            middle = Radix()
            middle.edges[run[same]] = (run[same:], below)
            self.edges[text[0]] = (run[:same], middle)
            below = middle
        return same + below.insert(text[same:])

    def texts(self) -> set[tuple[int, ...]]:
        """Every way down."""
        if not self.edges:
            return {()}
        return {(*run, *rest) for run, below in self.edges.values() for rest in below.texts()}


@contextmanager
def fresh_index() -> Iterator[Index]:
    path = Path(tempfile.mkdtemp())
    try:
        with Index(path / "index") as index:
            yield index
    finally:
        shutil.rmtree(path)


def find(index: Index, text: Sequence[int]) -> list[Cid]:
    return index.lookup_chain(prefix_keys(MODEL, text, BLOCK_SIZE), "test")


def record(store: MemoryStore, index: Index, text: Sequence[int]) -> list[Cid]:
    blocks = make_blocks(store, MODEL, text)
    index.add_blocks(entries(MODEL, text, blocks))
    return blocks


TEXTS = st.lists(st.lists(st.integers(0, 1), max_size=24), max_size=10)


@given(TEXTS)
@example([[0] * 12, [0] * 6 + [1] * 6, [0] * 12, [0] * 5])
def test_as_many_blocks_are_found_as_a_radix_tree_finds_tokens(texts: list[list[int]]) -> None:
    tree, store = Radix(), MemoryStore()
    with fresh_index() as index:
        for text in texts:
            known = tree.insert(text)
            found = find(index, text)
            # The end of a text that fills no block is known to the tree and to no index of blocks.
            assert len(found) == known // BLOCK_SIZE
            blocks = record(store, index, text)
            assert blocks[: len(found)] == found
            assert find(index, text) == blocks
    assert all(any(way[: len(text)] == tuple(text) for way in tree.texts()) for text in texts)


@pytest.mark.parametrize("at", [0, 1, 3, 4, 5, 8, 11, 12])
def test_a_split_in_the_middle_of_an_edge_shares_exactly_what_comes_before(at: int) -> None:
    text, store = list(range(1, 13)), MemoryStore()
    other = [*text[:at], 99, *text[at + 1 :]]
    with fresh_index() as index:
        blocks = record(store, index, text)
        before = {cid: store.get(cid) for cid in store.cids()}
        assert find(index, other) == blocks[: at // BLOCK_SIZE]
        split = record(store, index, other)
        assert split[: at // BLOCK_SIZE] == blocks[: at // BLOCK_SIZE]
        assert not {*split[at // BLOCK_SIZE :]} & {*blocks} or at == 12
        # Nothing that was there is another now, and the first text is found as before.
        assert all(store.get(cid) == data for cid, data in before.items())
        assert find(index, text) == blocks


def test_the_longest_beginning_wins() -> None:
    store = MemoryStore()
    with fresh_index() as index:
        for length in (4, 12, 8):
            record(store, index, [7] * length)
        assert [len(find(index, [7] * length)) for length in (3, 4, 9, 12, 40)] == [0, 1, 2, 3, 3]
        assert find(index, [8] + [7] * 11) == []  # control: the same run, one token later


def test_a_lookup_costs_one_read_a_block_however_many_calls_lie_between() -> None:
    """No look-back: what 80 tool calls have put between is found like the rest."""
    calls = 80
    text, store = [token % 251 for token in range((2 * calls + 2) * BLOCK_SIZE)], MemoryStore()
    with fresh_index() as index:
        blocks = record(store, index, text)
        index.reads = 0
        assert find(index, text + [1] * BLOCK_SIZE) == blocks
        assert index.reads == len(blocks) + 1
        assert find(index, [9, *text[1:]]) == []  # control
