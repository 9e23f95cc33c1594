"""Names, their logs, and what was published."""

from contextlib import suppress

import pytest

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.database import Transaction
from cyberkv.cybergraph.errors import BadReference, Corrupt, NameNotFound, Refused
from cyberkv.cybergraph.index import Head, Index
from cyberkv.cybergraph.index.marks import MAX_SOURCES
from cyberkv.cybergraph.prefix import prefix_keys
from cyberkv.cybergraph.store import MemoryStore
from tests.contracts.synthetic import BLOCK_SIZE, entries, make_blocks, make_model

MODEL = make_model().cid()


def node_cid(name: str) -> Cid:
    return Cid.of(name.encode(), "dag-cbor", "sha2-256")


def test_receipts_are_noted_by_root_and_signer_until_they_are_deleted(index: Index) -> None:
    root, other, first, second = map(node_cid, ("root", "other", "first", "second"))
    index.keep_receipt(root, b"s" * 32, first)
    assert index.receipt_of(root, b"s" * 32) == first
    assert (index.receipt_of(root, b"t" * 32), index.receipt_of(other, b"s" * 32)) == (None, None)
    index.keep_receipt(root, b"s" * 32, second)
    index.keep_receipt(root, b"t" * 32, first)
    assert index.receipt_of(root, b"s" * 32) == second
    assert index.remove_blocks([second]) == 0
    assert (index.receipt_of(root, b"s" * 32), index.receipt_of(root, b"t" * 32)) == (None, first)
    assert list(index.check()) == []


@pytest.mark.parametrize("table", ["heads", "log"])
@pytest.mark.parametrize("damaged", [b"", b"cut", b"x" * 70], ids=["empty", "cut", "junk"])
def test_a_rebuild_lets_a_name_and_its_log_agree_again(
    table: str, damaged: bytes, index: Index, memory_store: MemoryStore
) -> None:
    roots = [node_cid(f"root {number}") for number in range(2)]
    for root in roots:
        index.set_head("talk", root, "")
    index.set_head("other", roots[0], "")
    index.set_head("gone", roots[0], "")
    index.drop("gone")

    def spoil(txn: Transaction) -> None:
        rows = index._database[table]
        with txn.cursor(rows) as cursor:
            keys = [key for key, _ in cursor if key.startswith(b"talk")]
        txn.put(keys[-1], damaged, db=rows)

    index._database.write(spoil)
    with suppress(Corrupt):
        assert list(index.check_names())
    index.rebuild(memory_store)
    assert list(index.check_names()) == []
    assert [(each.name, each.root) for each in index.heads()] == [("other", roots[0]), ("talk", roots[1])]
    assert index.log("talk")[-1].root == roots[1]


@pytest.mark.parametrize("damaged", [b"\x00", b"x" * 100, b"\xff" * 80])
def test_a_damaged_row_of_answers_is_said_and_a_rebuild_mends_it(
    damaged: bytes, index: Index, memory_store: MemoryStore
) -> None:
    model = memory_store.put_node(make_model())
    tokens = list(range(3 * BLOCK_SIZE))
    blocks = make_blocks(memory_store, model, tokens)
    index.add_blocks(entries(model, tokens, blocks, domain="own"))
    keys = list(prefix_keys(model, tokens, BLOCK_SIZE))
    index._database.write(lambda txn: txn.put(index.filed_as(keys[1]), damaged, db=index._database["found"]))
    for attempt in (lambda: index.lookup(keys[1]), lambda: list(index.check()), lambda: list(index.entries())):
        with pytest.raises(Corrupt):
            attempt()
    index.rebuild(memory_store)
    assert list(index.check()) == []
    assert index.lookup_chain(keys, "own") == blocks[:1]  # of the one that was damaged nobody knows who computed it
    assert [each.domain for each in index.entries()].count("own") == 2


def test_names_move_and_keep_a_log(index: Index) -> None:
    roots = [node_cid(f"root {number}") for number in range(3)]
    for number, root in enumerate(roots):
        index.set_head("talk", root, f"2025-01-0{number + 1}T00:00:00Z")
        index.set_head("talk", root, "again")  # the head again is no change
    index.set_head("über alles ✓", roots[0], "")
    assert index.head("talk") == Head("talk", roots[2], "2025-01-03T00:00:00Z")
    assert [each.root for each in index.log("talk")] == roots
    assert [each.name for each in index.heads()] == ["talk", "über alles ✓"]
    assert index.roots() == sorted(roots)
    index.set_head("talk", roots[0], "back")
    assert [each.root for each in index.log("talk")] == [*roots, roots[0]]


def test_names_do_not_run_into_each_other(index: Index) -> None:
    index.set_head("a", node_cid("1"), "")
    index.set_head("ab", node_cid("2"), "")
    assert [each.root for each in index.log("a")] == [node_cid("1")]
    index.drop("a")
    assert [each.name for each in index.heads()] == ["ab"]
    assert [each.root for each in index.log("ab")] == [node_cid("2")]


def test_dropped_names(index: Index) -> None:
    with pytest.raises(NameNotFound):
        index.drop("talk")
    index.set_head("talk", node_cid("1"), "")
    index.drop("talk")
    for attempt in (index.head, index.log, index.drop):
        with pytest.raises(NameNotFound):
            attempt("talk")
    assert index.heads() == []
    index.set_head("talk", node_cid("2"), "")
    assert [each.root for each in index.log("talk")] == [node_cid("2")]


def test_a_name_begins_anew_unless_it_has_moved_on(index: Index) -> None:
    first, moved, sealed = map(node_cid, ("first", "moved", "sealed"))
    with pytest.raises(NameNotFound):
        index.begin_anew("talk", first, sealed, "")
    index.set_head("talk", first, "")
    index.set_head("talk", moved, "")
    with pytest.raises(Refused):
        index.begin_anew("talk", first, sealed, "")
    assert [each.root for each in index.log("talk")] == [first, moved]
    index.begin_anew("talk", moved, sealed, "")
    assert [each.root for each in index.log("talk")] == [sealed]
    assert index.head("talk").root == sealed


@pytest.mark.parametrize(
    "name",
    [
        "", "x" * 256, "a\0b", "line\nbreak", " padded", "\ud800", str(MODEL), "b" + "a" * 58, "é" * 128, "--json", "-",
        "../../x", "a/b", "a\\b", "bafyreib", str(MODEL)[:20], str(Cid.of(b"leaf", "raw", "blake3"))[:8],
    ],
)  # fmt: skip
def test_names_that_are_refused(index: Index, name: str) -> None:
    for attempt in (
        lambda: index.set_head(name, MODEL, ""),
        lambda: index.head(name),
        lambda: index.drop(name),
    ):
        with pytest.raises(BadReference) as caught:
            attempt()
        assert caught.value.hint
    assert index.heads() == []


@pytest.mark.parametrize("name", ["x" * 255, "a b", "bafy", "b" + "x" * 57, "日本語", "..", "a-b", "é" * 127])
def test_names_that_are_taken(index: Index, name: str) -> None:
    index.set_head(name, MODEL, "")
    assert index.head(name).root == MODEL


def test_only_what_was_published_is_public(index: Index) -> None:
    root, inside, outside = node_cid("root"), Cid.of(b"leaf", "raw", "blake3"), node_cid("outside")
    assert not index.is_public(root)
    index.publish(root, [inside])
    assert [index.is_public(cid) for cid in (root, inside, outside)] == [True, True, False]
    assert index.published() == [root]
    assert index.roots() == [root]


def test_pins_are_roots_until_they_are_taken_away(index: Index) -> None:
    pinned, other = node_cid("pinned"), node_cid("other")
    assert index.pin(pinned, "2025-01-01T00:00:00Z")
    assert not index.pin(pinned, "later")  # the first time stays
    assert index.pins() == {pinned: "2025-01-01T00:00:00Z"}
    assert index.roots() == [pinned]
    assert not index.unpin(other)
    assert index.unpin(pinned)
    assert (index.pins(), index.roots()) == ({}, [])


def test_sources_are_remembered_newest_first_and_not_without_end(index: Index) -> None:
    root = node_cid("root")
    assert index.sources() == {}
    index.add_sources(root, [])
    assert index.sources() == {}
    index.add_sources(root, ["http://a", "/there/b.car"])
    index.add_sources(root, ["http://c", "http://a"])
    assert index.sources() == {root: ["http://c", "http://a", "/there/b.car"]}
    assert index.roots() == []  # where something came from holds nothing
    index.add_sources(root, [f"http://{number}" for number in range(20)])
    assert index.sources()[root] == [f"http://{number}" for number in range(MAX_SOURCES)]
