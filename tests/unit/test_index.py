"""The index: lookups, order, divergences, several processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import (
    Corrupt,
    LimitExceeded,
    UnsupportedFormat,
)
from cyberkv.cybergraph.index import UNKNOWN_DOMAIN, Found, Head, Index, IndexEntry
from cyberkv.cybergraph.prefix import prefix_keys
from cyberkv.cybergraph.store import MemoryStore
from tests.contracts.synthetic import BLOCK_SIZE, entries, make_blocks, make_model

MODEL = make_model().cid()
TOKENS = list(range(40))
KEYS = list(prefix_keys(MODEL, TOKENS, BLOCK_SIZE))


def node_cid(name: str) -> Cid:
    return Cid.of(name.encode(), "dag-cbor", "sha2-256")


def entry(key: int, block: str, prev: str | None, domain: str = "own") -> IndexEntry:
    return IndexEntry(KEYS[key], node_cid(block), node_cid(prev) if prev else None, MODEL, domain)


@pytest.fixture
def blocks(memory_store: MemoryStore) -> list[Cid]:
    return make_blocks(memory_store, MODEL, TOKENS)


def test_a_chain_is_found_as_far_as_it_goes(index: Index, blocks: list[Cid]) -> None:
    assert index.lookup_chain(KEYS, "test") == []
    index.add_blocks(list(entries(MODEL, TOKENS, blocks))[:7])
    assert index.lookup_chain(KEYS, "test") == blocks[:7]
    assert index.lookup_chain(KEYS[:3], "test") == blocks[:3]
    assert index.lookup_chain([], "test") == []
    assert index.lookup_chain(KEYS[1:], "test") == []  # a chain starts at the first block
    edited = [*TOKENS[:13], 999, *TOKENS[14:]]
    assert index.lookup_chain(prefix_keys(MODEL, edited, BLOCK_SIZE), "test") == blocks[: 13 // BLOCK_SIZE]
    other = make_model("other").cid()
    assert index.lookup_chain(prefix_keys(other, TOKENS, BLOCK_SIZE), "test") == []


def test_a_hole_ends_the_chain(index: Index, blocks: list[Cid]) -> None:
    rows = list(entries(MODEL, TOKENS, blocks))
    index.add_blocks(rows[:4] + rows[5:])
    assert index.lookup_chain(KEYS, "test") == blocks[:4]
    index.add_blocks(rows)
    assert index.lookup_chain(KEYS, "test") == blocks


def test_one_table_read_per_block_at_any_length(index: Index, memory_store: MemoryStore) -> None:
    for count in (1, 10, 300):
        tokens = [count, *range(count * BLOCK_SIZE - 1)]
        made = make_blocks(memory_store, MODEL, tokens)
        index.add_blocks(entries(MODEL, tokens, made))
        before = index.reads
        assert index.lookup_chain(prefix_keys(MODEL, tokens, BLOCK_SIZE), "test") == made
        assert index.reads - before == count


def test_keys_are_drawn_only_up_to_the_first_miss(index: Index) -> None:
    index.add_blocks([entry(0, "a", None)])
    keys = iter(KEYS)
    index.lookup_chain(keys, "own")
    assert len(list(keys)) == len(KEYS) - 2


def test_answers_keep_the_order_they_were_added_in(index: Index) -> None:
    added = [entry(0, "b", None, "x"), entry(0, "a", None, "y"), entry(0, "c", None, "x2")]
    for each in added:
        index.add_blocks([each])
    assert index.lookup(KEYS[0]) == [Found(each.block, each.domain, None) for each in added]
    assert index.lookup(KEYS[1]) == []


def test_the_own_domain_goes_first(index: Index) -> None:
    index.add_blocks([entry(0, "f0", None, "foreign"), entry(1, "f1", "f0", "foreign")])
    index.add_blocks([entry(0, "o0", None), entry(1, "o1", "o0")])
    assert index.lookup_chain(KEYS, "own") == [node_cid("o0"), node_cid("o1")]
    assert index.lookup_chain(KEYS, "foreign") == [node_cid("f0"), node_cid("f1")]
    assert index.lookup_chain(KEYS, "third") == [node_cid("f0"), node_cid("f1")]


def test_the_longer_chain_goes_before_the_own_domain_and_chains_are_never_mixed(index: Index) -> None:
    index.add_blocks([entry(0, "f0", None, "foreign"), entry(1, "f1", "f0", "foreign")])
    index.add_blocks([entry(0, "o0", None)])
    assert index.lookup_chain(KEYS, "own") == [node_cid("f0"), node_cid("f1")]
    index.add_blocks([entry(1, "o1", "f0")])  # own work upon an adopted block
    assert index.lookup_chain(KEYS, "own") == [node_cid("f0"), node_cid("o1")]
    assert index.lookup_chain(KEYS[:1], "own") == [node_cid("o0")]


def test_a_block_of_two_domains_counts_as_own_in_both(index: Index) -> None:
    index.add_blocks([entry(0, "x", None, "foreign"), entry(0, "y", None, "third"), entry(0, "y", None, "own")])
    assert index.lookup_chain(KEYS, "own") == [node_cid("y")]
    assert index.lookup_chain(KEYS, "third") == [node_cid("y")]
    assert index.domain_of(node_cid("y")) == "third"


def test_next_block_is_nothing_one_or_many(index: Index) -> None:
    assert index.next_block(None, MODEL) == []
    index.add_blocks([entry(0, "a", None), entry(1, "b", "a"), entry(1, "c", "a", "other"), entry(0, "a", None)])
    assert index.next_block(None, MODEL) == [node_cid("a")]
    assert index.next_block(node_cid("a"), MODEL) == sorted([node_cid("b"), node_cid("c")])
    assert index.next_block(node_cid("b"), MODEL) == []
    assert index.next_block(None, make_model("other").cid()) == []


def test_two_blocks_for_one_input_in_one_domain_are_a_divergence(index: Index) -> None:
    assert index.add_blocks([entry(0, "a", None), entry(0, "b", None, "other")]) == []
    assert index.divergences() == []
    shown = index.add_blocks([entry(0, "c", None)])
    assert [each.blocks for each in shown] == [(node_cid("a"), node_cid("c"))]
    assert (shown[0].key, shown[0].domain, shown[0].prev) == (index.filed_as(KEYS[0]), "own", None)
    assert index.divergences() == shown
    assert index.add_blocks([entry(0, "c", None)]) == []  # said once, kept
    third = index.add_blocks([entry(0, "d", None)])
    assert third[0].blocks == (node_cid("a"), node_cid("c"), node_cid("d"))
    assert index.divergences() == third


def test_blocks_upon_different_blocks_are_no_divergence(index: Index) -> None:
    index.add_blocks([entry(0, "a", None), entry(0, "f", None, "foreign")])
    assert index.add_blocks([entry(1, "b", "a"), entry(1, "c", "f")]) == []
    assert len(index.add_blocks([entry(1, "d", "a")])) == 1


def test_unknown_domains_show_no_divergence_and_give_way(index: Index) -> None:
    assert index.add_blocks([entry(0, "a", None, UNKNOWN_DOMAIN), entry(0, "b", None, UNKNOWN_DOMAIN)]) == []
    index.add_blocks([entry(0, "a", None, "own")])
    index.add_blocks([entry(0, "a", None, UNKNOWN_DOMAIN)])
    assert [(each.block, each.domain) for each in index.lookup(KEYS[0])] == [
        (node_cid("a"), "own"), (node_cid("b"), UNKNOWN_DOMAIN),
    ]  # fmt: skip
    assert index.domain_of(node_cid("a")) == "own"
    assert index.domain_of(node_cid("nothing")) is None


def test_a_block_has_one_prefix_key(index: Index) -> None:
    index.add_blocks([entry(0, "a", None)])
    with pytest.raises(Corrupt, match="indexed under"):
        index.add_blocks([entry(1, "b", "a"), entry(1, "a", None)])
    assert index.lookup(KEYS[1]) == []  # nothing of the refused batch stays


def test_a_domain_name_is_bounded(index: Index) -> None:
    index.add_blocks([entry(0, "a", None, "d" * 128)])
    with pytest.raises(LimitExceeded):
        index.add_blocks([entry(0, "b", None, "d" * 129)])


def test_removed_blocks_are_gone_everywhere(index: Index) -> None:
    index.add_blocks([entry(0, "a", None), entry(0, "a", None, "two"), entry(0, "b", None), entry(1, "c", "a")])
    assert index.remove_blocks([node_cid("a"), node_cid("never")]) == 1
    assert [each.block for each in index.lookup(KEYS[0])] == [node_cid("b")]
    assert index.next_block(None, MODEL) == [node_cid("b")]
    assert index.lookup_chain(KEYS, "own") == [node_cid("b")]
    assert index.remove_blocks([node_cid("b"), node_cid("c")]) == 2
    assert list(index.entries()) == []
    assert list(index.check()) == []


def test_everything_survives_closing(home: Path) -> None:
    with Index(home) as index:
        index.add_blocks([entry(0, "a", None), entry(0, "b", None)])
        index.set_head("talk", MODEL, "now")
        index.publish(MODEL, [])
    other = Index(home)
    other.close()
    other.close()
    with Index(home) as index, Index(home) as again:
        for each in (index, again):
            assert [found.block for found in each.lookup(KEYS[0])] == [node_cid("a"), node_cid("b")]
            assert len(each.divergences()) == 1
            assert each.head("talk") == Head("talk", MODEL, "now")
            assert each.is_public(MODEL)


def test_another_process_sees_and_adds(home: Path) -> None:
    code = """
import sys
from pathlib import Path
from cyberkv.cybergraph.index import Index
from tests.unit.test_index import MODEL, entry
with Index(Path(sys.argv[1])) as index:
    assert index.head("talk").root == MODEL
    index.add_blocks([entry(1, "b", "a")])
"""
    with Index(home) as index:
        index.set_head("talk", MODEL, "")
        index.add_blocks([entry(0, "a", None)])
        subprocess.run([sys.executable, "-c", code, str(home)], check=True, timeout=60)
        assert index.lookup_chain(KEYS, "own") == [node_cid("a"), node_cid("b")]


def test_another_version_is_refused(home: Path) -> None:
    with Index(home) as index:
        index._database.write(lambda txn: txn.put(b"version", b"3", db=index._database["meta"]))
    with pytest.raises(UnsupportedFormat, match="'3'"):
        Index(home)
