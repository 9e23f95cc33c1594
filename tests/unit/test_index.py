"""The index: lookups, order, divergences, marks, rebuild."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cyberkv.cybergraph import chain
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import (
    Corrupt,
    LimitExceeded,
    UnsupportedFormat,
)
from cyberkv.cybergraph.index import UNKNOWN_DOMAIN, Found, Head, Index, IndexEntry, disagreement, signed_domain
from cyberkv.cybergraph.nodes import EMPTY_TAIL
from cyberkv.cybergraph.prefix import PrefixKey, prefix_keys
from cyberkv.cybergraph.store import DiskStore, MemoryStore
from tests.contracts.synthetic import BLOCK_SIZE, entries, make_blocks, make_conversation, make_model

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


def answers(index: Index, keys: list[PrefixKey], blocks: list[Cid]) -> object:
    return (
        [sorted(found.block for found in index.lookup(key)) for key in keys],
        # Chains depend on who computed the blocks, which blocks alone do not tell.
        [index.next_block(source, MODEL) for source in (None, *blocks)],
    )


def test_fetched_blocks_answer_nothing(index: Index) -> None:
    own, fetched = [node_cid(f"own{i}") for i in range(2)], [node_cid(f"fetched{i}") for i in range(4)]
    rows = [(KEYS[i], fetched[i], fetched[i - 1] if i else None, UNKNOWN_DOMAIN) for i in range(4)]
    index.add_blocks([IndexEntry(key, block, prev, MODEL, domain) for key, block, prev, domain in rows])
    assert index.lookup_chain(KEYS, "test") == []
    assert index.lookup_chain(KEYS[1:], "test", after=fetched[0]) == []  # not even what goes on from one of them
    built_on_them = IndexEntry(KEYS[4], own[0], fetched[3], MODEL, "test")
    index.add_blocks([built_on_them])
    assert index.lookup_chain(KEYS, "test") == []
    assert index.lookup_chain(KEYS[4:], "test", after=fetched[3]) == own[:1]
    index.add_blocks([IndexEntry(KEYS[0], fetched[0], None, MODEL, "test")])  # computed here as well: no longer foreign
    assert index.lookup_chain(KEYS, "test") == fetched[:1]


ALICE, BOB, EVE = (bytes([number]) * 32 for number in (1, 2, 3))


def signed(number: int, name: str, prev: str | None, signer: bytes) -> IndexEntry:
    return entry(number, name, prev, signed_domain(signer))


def test_what_a_signer_brought_answers_while_the_signer_is_trusted(index: Index) -> None:
    index.add_blocks([entry(0, "a", None, UNKNOWN_DOMAIN), signed(0, "a", None, ALICE), signed(1, "b", "a", ALICE)])
    assert index.lookup_chain(KEYS, "own") == []
    index.trust([EVE])
    assert index.lookup_chain(KEYS, "own") == []
    index.trust([ALICE, EVE])
    assert index.trusted == {ALICE, EVE}
    assert index.lookup_chain(KEYS, "own") == [node_cid("a"), node_cid("b")]
    assert {index.domain_of(node_cid(name)) for name in "ab"} == {UNKNOWN_DOMAIN}
    index.trust([])
    assert index.lookup_chain(KEYS, "own") == []


def test_of_signers_who_contradict_each_other_none_is_believed(index: Index) -> None:
    index.trust([ALICE, BOB])
    index.add_blocks([signed(0, "a", None, ALICE), signed(0, "a", None, BOB), signed(1, "b", "a", ALICE)])
    assert index.lookup_chain(KEYS, "own") == [node_cid("a"), node_cid("b")]
    assert index.add_blocks([signed(1, "c", "a", EVE)]) == []  # who is not trusted contradicts nobody
    assert index.lookup_chain(KEYS, "own") == [node_cid("a"), node_cid("b")]
    assert index.add_blocks([signed(1, "d", "a", BOB)]) == []
    assert index.lookup_chain(KEYS, "own") == [node_cid("a")]
    named = disagreement(index.beside(node_cid("b")), node_cid("a"), index.trusted)
    assert named == {node_cid("b"): ALICE, node_cid("d"): BOB}
    assert disagreement(index.beside(node_cid("b")), node_cid("elsewhere"), index.trusted) == {}
    index.add_blocks([entry(1, "d", "a", "own")])  # computed here as well: now it is known
    assert index.lookup_chain(KEYS, "own")[0] == node_cid("a")
    assert disagreement(index.beside(node_cid("b")), node_cid("a"), index.trusted) == {}
    index.trust([BOB])
    assert index.lookup_chain(KEYS, "own") == [node_cid("a"), node_cid("d")]
    assert index.divergences() == []


def test_a_signer_who_names_two_blocks_for_one_place_is_not_believed_either(index: Index) -> None:
    index.trust([ALICE])
    assert index.add_blocks([signed(0, "a", None, ALICE), signed(0, "b", None, ALICE)]) == []
    assert index.lookup_chain(KEYS, "own") == []
    assert set(disagreement(index.lookup(KEYS[0]), None, index.trusted)) == {node_cid("a"), node_cid("b")}


def test_rebuild_from_blocks_alone(home: Path) -> None:
    with DiskStore(home / "store") as store:
        model = store.put_node(make_model())
        blocks = make_blocks(store, model, TOKENS)
        branch = make_blocks(store, model, TOKENS[20:32], before=blocks[4], flavour="again")
        roots = [make_conversation(store, TOKENS, created=f"2025-01-0{day}T00:00:00Z") for day in (3, 1, 2)]
        with Index(home / "index") as index:
            index.add_blocks(entries(model, TOKENS, blocks))
            for source, block, key in zip([blocks[4], *branch], branch, KEYS[5:], strict=False):
                index.add_blocks([IndexEntry(key, block, source, model, "other")])
            index.set_head("talk", roots[0], "2025-01-03T00:00:00Z")
            whole = answers(index, KEYS, blocks)
            assert index.lookup_chain(KEYS, "test") == blocks
            index.remove_blocks([blocks[3]])
            assert answers(index, KEYS, blocks) != whole  # the control
            done = index.rebuild(store)
            assert answers(index, KEYS, blocks) == whole
            assert index.lookup_chain(KEYS, "test") == blocks[:3]  # who computed the fourth is not known any more
            assert (done.blocks, done.detached, done.unreadable, done.names) == (13, [], [], [])
            assert index.domain_of(branch[0]) == "other"  # kept
            assert index.domain_of(blocks[3]) == UNKNOWN_DOMAIN
            assert index.domain_of(blocks[2]) == "test"
        shutil.rmtree(home / "index")
        with Index(home / "index") as index:
            assert answers(index, KEYS, blocks) != whole
            done = index.rebuild(store)
            assert answers(index, KEYS, blocks) == whole
            assert done.conversations == sorted(roots)
            assert done.names == ["talk"]
            assert [each.root for each in index.log("talk")] == [roots[1], roots[2], roots[0]]
            assert index.domain_of(branch[0]) == UNKNOWN_DOMAIN
            assert index.divergences() == []
            assert list(index.check()) == []
            assert index.rebuild(store).names == []


def test_a_rebuild_brings_back_only_usable_names_of_whole_conversations(
    index: Index, memory_store: MemoryStore
) -> None:
    whole = make_conversation(memory_store, range(9), title="whole")
    make_conversation(memory_store, range(200, 209), title=" unusable ")
    make_conversation(memory_store, range(300, 309), title=str(whole))
    cut = make_conversation(memory_store, range(400, 409), title="cut")
    tail = make_conversation(memory_store, range(500, 509), title="tail")
    root = chain.load_root(memory_store, cut)
    lost = next(step.block.kv[0] for step in chain.walk(memory_store, root))
    lost_tail = chain.load_root(memory_store, tail).tail.kv
    assert lost_tail is not None
    memory_store.delete_many([lost, *lost_tail])
    done = index.rebuild(memory_store)
    assert done.names == ["whole"]
    assert {each.name: each.root for each in index.heads()} == {"whole": whole}
    assert {cut, tail} < set(done.conversations)


def test_only_an_index_that_was_lost_as_a_whole_takes_names_from_titles(home: Path) -> None:
    with DiskStore(home / "store") as store:
        mine = make_conversation(store, range(9), title="theirs")
        make_conversation(store, range(100, 109), title="never named")
        with Index(home / "index") as index:
            index.set_head("mine", mine, "")
            assert index.rebuild(store).names == []
            index.drop("mine")
            assert index.rebuild(store).names == []  # neither under the name it had nor under its title
            assert index.heads() == []
        shutil.rmtree(home / "index")
        with Index(home / "index") as index:
            assert index.rebuild(store).names == ["never named", "theirs"]  # the control


def test_a_rebuild_says_what_it_cannot_index(index: Index, memory_store: MemoryStore) -> None:
    model, other = memory_store.put_node(make_model()), memory_store.put_node(make_model("other"))
    lost = make_blocks(memory_store, model, range(20))
    mixed = make_blocks(memory_store, other, range(4), before=make_blocks(memory_store, model, range(50, 54))[0])
    memory_store.delete_many([lost[2]])
    damaged = make_blocks(memory_store, model, range(70, 74))[0]
    memory_store._blocks[damaged] += b"x"
    memory_store.put(*_cbor(b"\xa1\x64type\x65other"))
    done = index.rebuild(memory_store)
    assert done.blocks == 3
    assert sorted(done.detached) == sorted([*lost[3:], *mixed])
    assert done.unreadable == [damaged]
    assert done.conversations == []


def _cbor(data: bytes) -> tuple[Cid, bytes]:
    return Cid.of(data, "dag-cbor", "sha2-256"), data


def test_blocks_of_approximate_conversations_stay_out(index: Index, memory_store: MemoryStore) -> None:
    model = memory_store.put_node(make_model())
    exact = make_blocks(memory_store, model, range(8))
    spliced = make_blocks(memory_store, model, range(8, 16), before=exact[-1], flavour="spliced")
    for blocks, approx in ((exact, None), ([*exact, *spliced], "splice")):
        chain.build_root(
            memory_store, model=model, block_size=BLOCK_SIZE, blocks=blocks, tail=EMPTY_TAIL, payload_bytes=0,
            approx=approx,
        )  # fmt: skip
    assert index.rebuild(memory_store).blocks == 2
    keys = prefix_keys(model, range(16), BLOCK_SIZE)
    assert [found.block for key in keys for found in index.lookup(key)] == exact
    chain.build_root(
        memory_store,
        model=model,
        block_size=BLOCK_SIZE,
        blocks=[*exact, *spliced],
        tail=EMPTY_TAIL,
        payload_bytes=0,
    )
    assert index.rebuild(memory_store).blocks == 4  # the control: an exact root vouches for them
