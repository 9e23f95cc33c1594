"""Every kind of damage is found and named, and a sound home gives none."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cyberkv.cybergraph import chain
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index, IndexEntry
from cyberkv.cybergraph.keeping.fsck import Counts, fsck
from cyberkv.cybergraph.nodes import EMPTY_TAIL, Block, Segment
from cyberkv.cybergraph.prefix import PrefixKey
from cyberkv.cybergraph.store import DiskStore, Finding
from cyberkv.cybergraph.survey import Survey
from tests.contracts.disk import flip
from tests.contracts.other import other
from tests.contracts.synthetic import entries, leaf, make_blocks, make_conversation, make_model

TOKENS = list(range(23))  # five blocks and a tail
MODEL = make_model().cid()


class Home:
    """One named conversation, indexed, beside things that are nobody's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self.store() as store, self.index() as index:
            self.root = make_conversation(store, TOKENS)
            conversation = chain.load_root(store, self.root)
            self.blocks = list(chain.block_cids(store, conversation))
            self.segment = conversation.segments[0]
            self.leaf = Block.decode(store.get(self.blocks[2])).kv[1]
            assert conversation.tail.kv is not None
            self.tail_leaf = conversation.tail.kv[0]
            index.add_blocks(entries(MODEL, TOKENS, self.blocks))
            index.set_head("talk", self.root, "")
            # None of this is damage: an orphan, a foreign node, a fetch that stopped.
            store.put_many([leaf(b"orphan"), foreign()])
            stopped = make_conversation(store, range(50, 59), title="stopped")
            store.delete_many([next(chain.walk(store, chain.load_root(store, stopped))).block.kv[0]])

    def store(self) -> DiskStore:
        return DiskStore(self.path / "store")

    def index(self) -> Index:
        return Index(self.path / "index")

    def check(self, counts: Counts | None = None) -> list[Finding]:
        with self.store() as store, self.index() as index:
            return list(fsck(store, index, counts))


def foreign() -> tuple[Cid, bytes]:
    data = bytes.fromhex("a1647479706563796f75")
    return Cid.of(data, "dag-cbor", "sha2-256"), data


@pytest.fixture
def sound(home: Path) -> Home:
    return Home(home)


def test_a_sound_home_gives_no_finding(sound: Home) -> None:
    counts = Counts()
    assert sound.check(counts) == []
    assert counts.conversations == 2
    assert counts.unnamed_conversations == 1
    assert counts.foreign_nodes == 1
    assert counts.orphan_leaves == 1
    assert counts.index_entries == 5
    assert counts.nodes == 1 + 5 + 1 + 1 + 1 + (2 + 1 + 1)  # model, blocks, segment, root, foreign; the stopped fetch
    assert counts.leaves == 5 * 2 + 2 + 1 + (2 * 2 + 2 - 1)
    stopped = next(each.cid for each in counts.orphans if each.what == "conversation")
    assert [(each.cid, each.what, each.reason) for each in counts.orphans] == [
        (leaf(b"orphan")[0], "leaf", "no block or tail links to it"),
        (stopped, "conversation", "no name, publication or pin holds it"),
    ]
    assert counts.leaf_bytes > 0


def test_an_empty_home_gives_no_finding(home: Path) -> None:
    with DiskStore(home / "store") as store, Index(home / "index") as index:
        assert list(fsck(store, index)) == []


def flip_leaf(home: Home) -> None:
    with home.store() as store:
        flip(store, home.leaf)


def flip_node(home: Home) -> None:
    with home.store() as store:
        flip(store, home.blocks[3])


def flip_segment(home: Home) -> None:
    with home.store() as store:
        flip(store, home.segment)


def cut_slab(home: Home) -> None:
    with (home.path / "store" / "slab-4-0.kvd").open("r+b") as file:
        file.truncate(4096 + 10)


def delete_slab(home: Home) -> None:
    (home.path / "store" / "slab-4-0.kvd").unlink()


def forget(what: Callable[[Home], Cid]) -> Callable[[Home], None]:
    def harm(home: Home) -> None:
        with home.store() as store:
            store.delete_many([what(home)])

    return harm


def spoil_index(change: Callable[[IndexEntry], IndexEntry]) -> Callable[[Home], None]:
    def harm(home: Home) -> None:
        with home.index() as index:
            [*_, right] = entries(MODEL, TOKENS, home.blocks)
            index.remove_blocks([right.block])
            index.add_blocks([change(right)])

    return harm


def drop_row(table: str) -> Callable[[Home], None]:
    def harm(home: Home) -> None:
        with home.index() as index:
            database = index._database
            key = {"blocks": bytes(home.blocks[4]), "next": bytes(MODEL) + home.blocks[3]}[table]
            assert database.write(lambda txn: txn.delete(key, db=database[table]))

    return harm


def add_edge(home: Home) -> None:
    with home.index() as index:
        database = index._database
        edge = bytes(MODEL) + home.blocks[1]
        database.write(lambda txn: txn.put(edge, bytes(home.blocks[4]), db=database["next"]))


DAMAGE: dict[str, tuple[Callable[[Home], None], Callable[[Home], Cid | None], str, str]] = {
    "leaf": (flip_leaf, lambda h: h.leaf, "block", "do not hash"),
    "node": (flip_node, lambda h: h.blocks[3], "block", "do not hash"),
    "segment": (flip_segment, lambda h: h.segment, "block", "do not hash"),
    "slab cut": (cut_slab, lambda _: None, "slab", "slab-4-0.kvd has 4106 bytes"),
    "slab cut, leaf": (cut_slab, lambda h: h.leaf, "block", "cut short"),
    "slab gone": (delete_slab, lambda _: None, "slab", "slab-4-0.kvd is missing"),
    "slab gone, leaf": (delete_slab, lambda h: h.leaf, "block", "slab-4-0.kvd is missing"),
    "leaf gone": (forget(lambda h: h.leaf), lambda h: h.leaf, "conversation", "not here"),
    "tail gone": (forget(lambda h: h.tail_leaf), lambda h: h.tail_leaf, "conversation", "not here"),
    "block gone": (forget(lambda h: h.blocks[1]), lambda h: h.blocks[1], "conversation", "not here"),
    "block gone, index": (forget(lambda h: h.blocks[4]), lambda h: h.blocks[4], "index", "not here"),
    "segment gone": (forget(lambda h: h.segment), lambda h: h.segment, "conversation", "not here"),
    "root gone": (forget(lambda h: h.root), lambda h: h.root, "conversation", "not here"),
    "model gone": (forget(lambda _: MODEL), lambda _: MODEL, "conversation", "not here"),
    "wrong key": (
        spoil_index(lambda entry: entry._replace(prefix=PrefixKey(bytes(32)))),
        lambda h: h.blocks[4], "index", "is filed under another",
    ),
    "wrong prev": (
        spoil_index(lambda entry: entry._replace(prev=None)),
        lambda h: h.blocks[4], "index", "previous block",
    ),
    "wrong model": (
        spoil_index(lambda entry: entry._replace(model=make_model("x").cid())),
        lambda h: h.blocks[4], "index", "another model",
    ),
    "no such block": (
        spoil_index(lambda entry: entry._replace(block=make_model("y").cid())),
        lambda _: make_model("y").cid(), "index", "not here",
    ),
    "row lost": (drop_row("blocks"), lambda h: h.blocks[4], "index", "answers"),
    "edge lost": (drop_row("next"), lambda h: h.blocks[4], "index", "not by next_block"),
    "edge too many": (add_edge, lambda h: h.blocks[4], "index", "not by prefix key"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_named(sound: Home, name: str) -> None:
    harm, about, what, reason = DAMAGE[name]
    assert sound.check() == []  # the control
    harm(sound)
    found = sound.check()
    fitting = [each for each in found if (each.cid, each.what) == (about(sound), what)]
    assert any(reason in each.reason for each in fitting), found
    assert sound.check() == found  # checking changes nothing


@pytest.mark.parametrize("harm", [flip_leaf, flip_node, flip_segment, forget(lambda h: h.leaf)])
def test_one_damage_is_one_finding(sound: Home, harm: Callable[[Home], None]) -> None:
    harm(sound)
    assert len(sound.check()) == 1


def test_nodes_that_are_sound_but_do_not_belong_together(sound: Home) -> None:
    with sound.store() as store, sound.index() as index:
        root = chain.load_root(store, sound.root)
        page = Segment.decode(store.get(root.segments[0]))
        links = (*page.links[:2], replace(page.links[2], position_start=9), *page.links[3:])
        other = replace(root, segments=(store.put_node(replace(page, links=links)),))
        index.set_head("talk", store.put_node(other), "")
    assert [(each.cid, each.what) for each in sound.check()] == [(other.cid(), "conversation")]


def test_a_leaf_of_another_size(sound: Home) -> None:
    with sound.store() as store, sound.index() as index:
        short = leaf(b"sound bytes, and too few of them")
        store.put_many([short])
        block = replace(Block.decode(store.get(sound.blocks[0])), kv=(short[0], sound.leaf))
        root = chain.build_root(
            store, model=MODEL, block_size=4, blocks=[store.put_node(block)], tail=EMPTY_TAIL, payload_bytes=1024
        )
        index.set_head("short", root, "")
    [found] = sound.check()
    assert (found.cid, found.what) == (short[0], "leaf")
    assert found.reason == f"has 32 bytes, where {block.cid()} needs 512"


def test_what_no_conversation_holds_is_an_orphan(sound: Home) -> None:
    with sound.store() as store, sound.index() as index:
        index.drop("talk")
        loose = make_blocks(store, MODEL, range(80, 84), flavour="loose")
        store.delete_many([sound.root])
    counts = Counts()
    assert sound.check(counts) == []
    orphans = {each.cid: each.what for each in counts.orphans}
    assert orphans.items() >= {(loose[0], "block"), (sound.segment, "segment"), (sound.tail_leaf, "leaf")}
    assert not orphans.keys() & set(sound.blocks)  # their segment links to them


def test_a_node_of_a_known_type_and_wrong_form(sound: Home) -> None:
    data = bytes.fromhex("a164747970656d637962") + b"erkv/block"  # a map of one field: type
    cid = Cid.of(data, "dag-cbor", "sha2-256")
    with sound.store() as store:
        store.put_many([(cid, data)])
    assert [(each.cid, each.what) for each in sound.check()] == [(cid, "node")]


def test_damage_outside_every_conversation_is_found_too(sound: Home) -> None:
    with sound.store() as store:
        flip(store, leaf(b"orphan")[0])
    assert [(each.cid, each.what) for each in sound.check()] == [(leaf(b"orphan")[0], "block")]


def test_a_detached_index_entry(sound: Home) -> None:
    with sound.store() as store, sound.index() as index:
        blocks = make_blocks(store, MODEL, range(80, 92), flavour="lost")
        index.add_blocks(entries(MODEL, range(80, 92), blocks))
    assert sound.check() == []
    forget(lambda _: blocks[0])(sound)
    counts = Counts()
    assert [(each.cid, each.what) for each in sound.check(counts)] == [(blocks[0], "index")]
    assert counts.detached_entries == 2


def newest(index: Index) -> tuple[int, Cid]:
    return max((int(head.name.split()[1]), head.root) for head in index.heads())


def test_beside_a_writer_nothing_is_reported_that_is_only_under_way(home: Path) -> None:
    code = """
        from itertools import count
        from select import select
        from cyberkv.cybergraph.keeping.gc import collect
        with DiskStore(home / "store") as store, Index(home / "index") as index:
            for number in count():
                tokens = range(number, number + 40)
                root = make_conversation(store, tokens, title=f"talk {number}")
                blocks = list(chain.block_cids(store, chain.load_root(store, root)))
                index.add_blocks(entries(make_model().cid(), list(tokens), blocks))
                index.set_head(f"talk {number}", root, "")
                if number == 0:
                    print("writes", flush=True)
                if number >= 10:
                    index.drop(f"talk {number - 10}")
                if number % 5 == 4:
                    collect(store, index)
                if select([sys.stdin], [], [], 0)[0]:
                    break
            wait(f"ended after {number + 1}")
    """
    with other(code, home) as process:
        process.says("writes")
        with DiskStore(home / "store", read_only=True) as store, Index(home / "index") as index:
            rounds = 0
            while rounds < 20 or newest(index)[0] < 20:  # by then it has forgotten and collected, too
                assert list(fsck(store, index)) == []
                rounds += 1
            process.goes_on()
            process.ends()
            assert list(fsck(store, index)) == []
        with DiskStore(home / "store") as store, Index(home / "index") as index:  # the control
            store.delete_many([newest(index)[1]])
            assert len(list(fsck(store, index))) == 1


def test_a_block_that_is_deleted_between_listing_and_reading_is_no_error(home: Path) -> None:
    with DiskStore(home / "store") as store:
        root = make_conversation(store, range(40))
        blocks = list(chain.block_cids(store, chain.load_root(store, root)))
        survey = Survey.of(store)
        assert survey.prefix_key_of(store, blocks[0]) is not None
        store.delete_many([blocks[1]])
        assert survey.prefix_key_of(store, blocks[1]) is None
        assert survey.prefix_key_of(store, blocks[0]) is not None
