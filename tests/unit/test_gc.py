"""Collecting garbage: beside other processes, with files that resist, with damage, and killed at every step."""

import signal
from pathlib import Path

import pytest

from cyberkv.cybergraph import chain
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import BlockNotFound, DigestMismatch, Refused
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.keeping.fsck import fsck
from cyberkv.cybergraph.keeping.gc import collect, find_garbage
from cyberkv.cybergraph.keeping.quarantine import quarantine, quarantined
from cyberkv.cybergraph.nodes import Block, ModelCard, Tail
from cyberkv.cybergraph.store import DiskStore
from tests.contracts.disk import flip, in_child
from tests.contracts.other import other
from tests.contracts.synthetic import blocks, entries, leaf, make_blocks, make_conversation, make_model

MODEL = make_model().cid()


class Home:
    """A conversation `mine`, indexed, and one that nobody holds any more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self.store() as store, self.index() as index:
            self.mine = make_conversation(store, range(9), title="mine")
            self.forgotten = make_conversation(store, [*range(4), *range(20, 25)], title="forgotten")
            for root, tokens in ((self.mine, range(9)), (self.forgotten, [*range(4), *range(20, 25)])):
                chained = list(chain.block_cids(store, chain.load_root(store, root)))
                index.add_blocks(entries(MODEL, list(tokens), chained))
            index.set_head("mine", self.mine, "")
            self.needed = set(chain.closure(store, self.mine))
            self.garbage = set(store.cids()) - self.needed

    def store(self) -> DiskStore:
        return DiskStore(self.path / "store")

    def index(self) -> Index:
        return Index(self.path / "index")

    def cids(self) -> set[Cid]:
        with DiskStore(self.path / "store", read_only=True) as store:
            return set(store.cids())


@pytest.fixture
def talks(home: Path) -> Home:
    return Home(home)


def test_what_is_forgotten_goes_and_files_shrink(talks: Home) -> None:
    with talks.store() as store, talks.index() as index:
        garbage, swept = collect(store, index)
        assert {*garbage.nodes, *garbage.leaves} == talks.garbage
        assert [root.title for root in garbage.conversations.values()] == ["forgotten"]
        assert (garbage.needed, garbage.kept_blocks) == (talks.needed, len(talks.needed))
        assert swept.freed_bytes > 0
        assert set(store.cids()) == talks.needed
        assert list(fsck(store, index)) == []
        # The files grow again, and what is read from them is right.
        again = make_conversation(store, [*range(4), *range(20, 25)], title="forgotten")
        assert again == talks.forgotten
        assert all(store.get(cid) for cid in chain.closure(store, again))
        assert list(store.check()) == []


def test_free_slots_between_others_are_given_back(talks: Home) -> None:
    made = blocks(60)  # two pages each
    path = talks.path / "store" / "slab-8-0.kvd"
    with talks.store() as store, talks.index() as index:
        store.put_many(made)
        held = [cid for cid, _ in made[1::2]]
        root = chain.build_root(
            store, model=MODEL, block_size=4, blocks=[], payload_bytes=5000,
            tail=Tail(tokens=(1,), prefilled=0, domain="test", kv=tuple(held)),
        )  # fmt: skip
        index.pin(root, "")
        before = path.stat().st_blocks * 512
        _, swept = collect(store, index)
        after = path.stat().st_blocks * 512
        assert 30 * 8192 <= after <= 31 * 8192 < before  # the file system keeps a list of the holes
        assert swept.freed_bytes >= before - after
        assert swept.undeletable == {}
        assert [store.get(cid) for cid in held] == [data for _, data in made[1::2]]
        store.put_many(made)  # into the holes
        assert [store.get(cid) for cid, _ in made] == [data for _, data in made]
        assert path.stat().st_size == 60 * 8192


def test_models_cards_and_what_another_version_wrote_stay(talks: Home) -> None:
    foreign_leaf = leaf(b"held by a node of another version")
    foreign_data = bytes.fromhex("a2646b696e64d82a582500") + foreign_leaf[0] + bytes.fromhex("64747970656178")
    foreign = Cid.of(foreign_data, "dag-cbor", "sha2-256")
    with talks.store() as store, talks.index() as index:
        absent = make_model("absent").cid()
        card = store.put_node(ModelCard(MODEL, "name", "MIT", (talks.forgotten, absent), None))
        store.put_many([foreign_leaf, (foreign, foreign_data)])
        other_model = store.put_node(make_model("other"))
        collect(store, index)
        assert set(store.cids()) == talks.needed | {card, foreign, foreign_leaf[0], other_model}


def test_what_is_public_or_pinned_or_in_a_log_stays(talks: Home) -> None:
    with talks.store() as store, talks.index() as index:
        index.set_head("mine", talks.forgotten, "")  # now the first root is only in the log
        public = make_conversation(store, range(40, 49), title="public")
        index.publish(public, chain.closure(store, public))
        [block] = make_blocks(store, MODEL, range(60, 64))
        index.pin(block, "")
        everything = set(store.cids())
        collect(store, index)
        assert set(store.cids()) == everything
        assert index.unpin(block)
        collect(store, index)
        assert everything - set(store.cids()) == {block, *Block.decode(make_block(60).encode()).kv}


def make_block(first: int) -> Block:
    from cyberkv.cybergraph.store import MemoryStore

    with MemoryStore() as store:
        [cid] = make_blocks(store, MODEL, range(first, first + 4))
        return Block.decode(store.get(cid))


def test_a_recording_under_way_in_another_process_loses_nothing(talks: Home) -> None:
    code = """
        with DiskStore(home / "store") as store, Index(home / "index") as index:
            blocks = make_blocks(store, make_model().cid(), range(70, 82))
            root = make_conversation(store, [*range(4), *range(20, 25)], title="forgotten")  # counts on what is here
            wait("stored, no root in use")
            index.set_head("theirs", root, "")
    """
    with other(code, talks.path) as process:
        process.says("stored, no root in use")
        before = talks.cids()
        with talks.store() as store, talks.index() as index:
            with pytest.raises(Refused, match="another process"):
                collect(store, index)
            assert len(find_garbage(store, index).nodes) > 3  # the control: to a look from outside it is garbage
        assert talks.cids() == before
        process.ends()
    with talks.store() as store, talks.index() as index:
        garbage, _ = collect(store, index)  # the blocks that never got a root
        assert set(make_block(70).kv) <= set(garbage.leaves)
        assert chain.missing(store, index.head("theirs").root, talks.mine) == []
        assert list(fsck(store, index)) == []


def test_a_reader_in_another_process_sees_right_bytes_or_a_miss(talks: Home) -> None:
    code = """
        with DiskStore(home / "store", read_only=True) as store, Index(home / "index") as index:
            mine = index.head("mine").root
            held = {cid: store.get(cid) for cid in chain.closure(store, mine)}
            gone = [cid for cid in store.cids() if cid not in held]
            assert all(store.get(cid) for cid in gone)
            wait("has read everything")
            assert {cid: store.get(cid) for cid in held} == held
            for cid in gone:
                try:
                    store.get(cid)
                except CyberKVError as error:
                    assert error.kind == "block-not-found", error
                else:
                    raise AssertionError(cid)
            wait("has read the rest")
            theirs = index.head("theirs").root
            assert all(store.get(cid) for cid in chain.closure(store, theirs))
    """
    with other(code, talks.path) as process:
        process.says("has read everything")
        with talks.store() as store, talks.index() as index:
            collect(store, index)
            process.goes_on()
            process.says("has read the rest")
            index.set_head("theirs", make_conversation(store, range(50, 90)), "")  # into the slots that were cut off
        process.ends()


def test_a_file_that_resists_stops_nothing(talks: Home) -> None:
    folder = talks.path / "store"
    with talks.store() as store, talks.index() as index:
        gone, large = leaf(b"gone"), leaf(bytes(9000))
        store.put_many([gone, large])
        flip(store, gone[0])
        assert quarantine(store, [gone[0]]) == [gone[0]]
        [slab] = folder.glob("slab-12-*")
        slab.unlink()
        slab.mkdir()  # what even the owner of everything cannot cut
        (folder / "quarantine" / str(leaf(b"resists")[0])).mkdir()
        (folder / ".CAP-4711").write_bytes(b"left by a killed process")
        garbage, swept = collect(store, index)
        assert {*garbage.nodes, *garbage.leaves} == talks.garbage | {large[0]}
        assert set(swept.undeletable) == {slab, folder / "quarantine" / str(leaf(b"resists")[0])}
        assert all(swept.undeletable.values())
        assert set(store.cids()) == talks.needed
        assert not (folder / ".CAP-4711").exists()
        assert [path.name for _, path in quarantined(store)] == [str(leaf(b"resists")[0])]


def test_quarantine_is_kept_until_a_sound_copy_is_back(talks: Home) -> None:
    with talks.store() as store, talks.index() as index:
        block = next(iter(chain.walk(store, chain.load_root(store, talks.mine)))).block
        sound = store.get(block.kv[0])
        flip(store, block.kv[0])
        assert quarantine(store, block.kv) == [block.kv[0]]  # the other one is sound and stays
        assert store.missing(block.kv) == [block.kv[0]]
        [(cid, path)] = quarantined(store)
        assert (cid, path.read_bytes()) == (block.kv[0], bytes([sound[0] ^ 1]) + sound[1:])
        collect(store, index)
        assert len(list(quarantined(store))) == 1
        store.put_many([(block.kv[0], sound)])
        collect(store, index)
        assert list(quarantined(store)) == []


@pytest.mark.parametrize(
    ("harm", "error"),
    [
        (lambda store, cid: flip(store, cid), DigestMismatch),
        (lambda store, cid: store.delete_many([cid]), BlockNotFound),
    ],
)
def test_what_hangs_below_a_lost_node_is_not_garbage(talks: Home, harm: object, error: type[Exception]) -> None:
    with talks.store() as store, talks.index() as index:
        segment = chain.load_root(store, talks.mine).segments[0]
        assert callable(harm)
        harm(store, segment)
        before = set(store.cids())
        with pytest.raises(error, match="nothing was collected") as caught:
            collect(store, index)
        assert "forget" in getattr(caught.value, "hint", "")
        assert set(store.cids()) == before
        index.drop("mine")
        collect(store, index)  # nobody wants it any more
        assert set(store.cids()) == {MODEL}


@pytest.mark.parametrize("step", ["removing", "removed"])
def test_a_kill_at_each_step_of_a_delete(talks: Home, step: str) -> None:
    child = in_child(
        """
        from cyberkv.cybergraph.index import Index
        from cyberkv.cybergraph.keeping.gc import collect
        def on_step(step):
            if step == args[0]:
                os.kill(os.getpid(), signal.SIGKILL)
        with DiskStore(path / "store", on_step=on_step) as store, Index(path / "index") as index:
            collect(store, index)
        """,
        talks.path, step,
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert talks.cids() == talks.needed | (talks.garbage if step == "removing" else set())
    with talks.store() as store, talks.index() as index:
        assert list(fsck(store, index)) == []
        collect(store, index)
        assert set(store.cids()) == talks.needed
        assert list(fsck(store, index)) == []


def test_a_store_open_to_read_is_refused(talks: Home) -> None:
    with DiskStore(talks.path / "store", read_only=True) as store, talks.index() as index:
        with pytest.raises(Refused, match="read-only"):
            collect(store, index)
        assert {*find_garbage(store, index).nodes} <= talks.garbage
