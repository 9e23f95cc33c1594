"""The index answers with what came from elsewhere only where somebody who is trusted signed it."""

from cyberkv.cybergraph.index import UNKNOWN_DOMAIN, Index, IndexEntry, disagreement, signed_domain
from tests.unit.test_index import KEYS, MODEL, entry, node_cid


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
