"""The index answers as a list searched from end to end would, and a rebuild changes no answer."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index, IndexEntry
from cyberkv.cybergraph.prefix import PrefixKey, prefix_keys
from cyberkv.cybergraph.store import MemoryStore
from tests.contracts.synthetic import BLOCK_SIZE, entries, make_blocks, make_model

MODEL = make_model().cid()
DOMAINS = ["a", "b"]
TALKS = st.lists(st.tuples(st.lists(st.integers(0, 1), min_size=0, max_size=5), st.sampled_from(DOMAINS)), max_size=8)
"""Conversations as one token value per block, so that prefixes meet often."""


def widen(values: list[int]) -> list[int]:
    return [value for value in values for _ in range(BLOCK_SIZE)]


@contextmanager
def fresh_index() -> Iterator[Index]:
    path = Path(tempfile.mkdtemp())
    try:
        with Index(path / "index") as index:
            yield index
    finally:
        shutil.rmtree(path)


def record(store: MemoryStore, talks: list[tuple[list[int], str]]) -> list[list[IndexEntry]]:
    """Store each talk; the bytes depend on the domain, as they do on different machines."""
    model = store.put_node(make_model())
    made = []
    for values, domain in talks:
        tokens = widen(values)
        blocks = make_blocks(store, model, tokens, flavour=domain)
        made.append(list(entries(model, tokens, blocks, domain)))
    return made


def plain_lookup(rows: list[IndexEntry], prefix: PrefixKey) -> list[tuple[Cid, str, Cid | None]]:
    found: list[tuple[Cid, str, Cid | None]] = []
    for row in rows:
        answer = (row.block, row.domain, row.prev)
        if row.prefix == prefix and answer not in found:
            found.append(answer)
    return found


def plain_chains(rows: list[IndexEntry], keys: list[PrefixKey]) -> list[list[Cid]]:
    """Every chain of the greatest length, by trying all of them."""
    chains: list[list[Cid]] = [[]]
    for key in keys:
        longer = [
            [*chain, block]
            for chain in chains
            for block, _, prev in plain_lookup(rows, key)
            if prev == (chain[-1] if chain else None)
        ]
        if not longer:
            break
        chains = longer
    return chains


@given(talks=TALKS, asked=st.lists(st.integers(0, 1), max_size=6), domain=st.sampled_from([*DOMAINS, "c"]))
@settings(max_examples=40)
def test_lookups_agree_with_a_list(talks: list[tuple[list[int], str]], asked: list[int], domain: str) -> None:
    with fresh_index() as index:
        rows: list[IndexEntry] = []
        for talk in record(MemoryStore(), talks):
            assert index.add_blocks(talk) == []  # domains differ, or the bytes agree
            rows += talk
        keys = list(prefix_keys(MODEL, widen(asked), BLOCK_SIZE))
        for key in keys:
            assert [tuple(found) for found in index.lookup(key)] == plain_lookup(rows, key)
        chains = plain_chains(rows, keys)
        chain = index.lookup_chain(keys, domain)
        assert chain in chains
        owned = {row.block for row in rows if row.domain == domain}
        assert sum(block in owned for block in chain) == max(sum(block in owned for block in each) for each in chains)
        for source in (None, *(row.block for row in rows)):
            assert index.next_block(source, MODEL) == sorted({row.block for row in rows if row.prev == source})
        assert {tuple(entry) for entry in index.entries()} == {(index.filed_as(row.prefix), *row[1:]) for row in rows}
        assert list(index.check()) == []


@given(talks=TALKS, data=st.data())
@settings(max_examples=25)
def test_removal_agrees_with_a_list(talks: list[tuple[list[int], str]], data: st.DataObject) -> None:
    with fresh_index() as index:
        rows = [row for talk in record(MemoryStore(), talks) for row in talk]
        index.add_blocks(rows)
        blocks = sorted({row.block for row in rows})
        gone = set(data.draw(st.lists(st.sampled_from(blocks), max_size=4))) if blocks else set()
        assert index.remove_blocks(gone) == len(gone)
        rest = [row for row in rows if row.block not in gone]
        for row in rows:
            assert [tuple(found) for found in index.lookup(row.prefix)] == plain_lookup(rest, row.prefix)
            assert index.next_block(row.prev, MODEL) == sorted({each.block for each in rest if each.prev == row.prev})
            assert (index.domain_of(row.block) is None) == (row.block in gone)
        assert list(index.check()) == []


@given(talks=TALKS.filter(lambda talks: any(values for values, _ in talks)), data=st.data())
@settings(max_examples=25)
def test_a_rebuild_changes_no_answer(talks: list[tuple[list[int], str]], data: st.DataObject) -> None:
    store = MemoryStore()
    rows = [row for talk in record(store, talks) for row in talk]
    keys = sorted({row.prefix for row in rows})
    sources = sorted({row.prev for row in rows if row.prev} | {row.block for row in rows})

    def answers(index: Index) -> object:
        return (
            [sorted({found.block for found in index.lookup(key)}) for key in keys],
            [index.next_block(source, MODEL) for source in (None, *sources)],
        )

    with fresh_index() as index:
        index.add_blocks(rows)
        whole, domains = answers(index), sorted(index.entries())
        index.rebuild(store)
        assert (answers(index), sorted(index.entries())) == (whole, domains)
        lost = data.draw(st.sampled_from(sorted({row.block for row in rows})))
        index.remove_blocks([lost])
        assert answers(index) != whole  # the control
        index.rebuild(store)
        assert answers(index) == whole
    with fresh_index() as index:
        index.rebuild(store)
        assert answers(index) == whole
