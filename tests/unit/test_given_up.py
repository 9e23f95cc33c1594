"""What an edit gave up: a note in the index, until the text is computed again or the block is deleted."""

from pathlib import Path

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index, IndexEntry
from cyberkv.cybergraph.prefix import prefix_keys
from cyberkv.cybergraph.store import MemoryStore
from tests.contracts.synthetic import BLOCK_SIZE, entries, make_blocks, make_model

MODEL = make_model().cid()
TOKENS = list(range(40))
KEYS = list(prefix_keys(MODEL, TOKENS, BLOCK_SIZE))


def node_cid(name: str) -> Cid:
    return Cid.of(name.encode(), "dag-cbor", "sha2-256")


def entry(key: int, block: str, prev: str | None) -> IndexEntry:
    return IndexEntry(KEYS[key], node_cid(block), node_cid(prev) if prev else None, MODEL, "own")


def test_what_was_given_up_is_noted_until_it_is_filed_again_or_removed(index: Index) -> None:
    index.add_blocks([entry(0, "a", None), entry(1, "b", "a"), entry(2, "c", "b")])
    assert index.give_up([node_cid("b"), node_cid("c"), node_cid("never")]) == 2
    assert index.lookup_chain(KEYS, "own") == [node_cid("a")]
    assert [index.given_up(key) for key in KEYS[:4]] == [None, node_cid("b"), node_cid("c"), None]
    index.add_blocks([entry(1, "b", "a")])
    assert [index.given_up(key) for key in KEYS[:3]] == [None, None, node_cid("c")]
    assert index.remove_blocks([node_cid("c")]) == 0  # it was not known any more, and its note goes
    assert index.given_up(KEYS[2]) is None
    assert index.remove_blocks([node_cid("a")]) == 1
    assert index.given_up(KEYS[0]) is None  # the control: what is only removed leaves no note
    assert list(index.check()) == []


def test_a_rebuild_does_not_bring_back_what_was_given_up(index: Index, memory_store: MemoryStore) -> None:
    model = memory_store.put_node(make_model())
    blocks = make_blocks(memory_store, model, TOKENS)
    index.add_blocks(entries(model, TOKENS, blocks))
    index.give_up(blocks[5:7])
    index.remove_blocks(blocks[8:9])
    index.rebuild(memory_store)
    found = {each.block for each in index.entries()}
    assert {*blocks} - found == {*blocks[5:7]}
    assert index.given_up(KEYS[5]) == blocks[5]
    index.remove_blocks(blocks[5:7])  # as a collection does
    index.rebuild(memory_store)
    assert {each.block for each in index.entries()} == {*blocks}  # the control


def test_each_of_several_answers_to_one_text_is_noted(index: Index, memory_store: MemoryStore) -> None:
    model = memory_store.put_node(make_model())
    blocks = make_blocks(memory_store, model, TOKENS[: 2 * BLOCK_SIZE])
    rivals = make_blocks(memory_store, model, TOKENS[: 2 * BLOCK_SIZE], flavour="rival")
    assert not {*blocks} & {*rivals}
    index.add_blocks([*entries(model, TOKENS, blocks), *entries(model, TOKENS, rivals, domain="other")])
    key = list(prefix_keys(model, TOKENS, BLOCK_SIZE))[1]

    def second() -> set[Cid]:
        return {each.block for each in index.lookup(key)}

    for given_up in ({blocks[1], rivals[1]}, {blocks[1]}, {rivals[1]}):
        index.give_up(given_up)
        assert second() == {blocks[1], rivals[1]} - given_up
        index.rebuild(memory_store)
        assert second() == {blocks[1], rivals[1]} - given_up
        assert index.given_up(key) in given_up
        index.remove_blocks(given_up)  # the control: without a note it comes back
        index.rebuild(memory_store)
        assert second() == {blocks[1], rivals[1]}
        assert index.given_up(key) is None


def test_a_note_tells_nothing_without_the_secret(home: Path) -> None:
    with Index(home / "index") as index:
        index.add_blocks([entry(0, "a", None)])
        index.give_up([node_cid("a")])
        filed = bytes(index.filed_as(KEYS[0]))
    held = b"".join(path.read_bytes() for path in (home / "index").iterdir())
    assert filed in held
    assert bytes(KEYS[0]) not in held
