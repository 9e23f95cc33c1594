"""The index is made again from the store: from blocks alone, with names where it was lost as a whole."""

import shutil
from pathlib import Path

from cyberkv.cybergraph import chain
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import UNKNOWN_DOMAIN, Index, IndexEntry
from cyberkv.cybergraph.nodes import EMPTY_TAIL
from cyberkv.cybergraph.prefix import PrefixKey, prefix_keys
from cyberkv.cybergraph.store import DiskStore, MemoryStore
from tests.contracts.synthetic import BLOCK_SIZE, entries, make_blocks, make_conversation, make_model
from tests.unit.test_index import KEYS, MODEL, TOKENS


def answers(index: Index, keys: list[PrefixKey], blocks: list[Cid]) -> object:
    return (
        [sorted(found.block for found in index.lookup(key)) for key in keys],
        # Chains depend on who computed the blocks, which blocks alone do not tell.
        [index.next_block(source, MODEL) for source in (None, *blocks)],
    )


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
