import resource
import subprocess
import sys
from pathlib import Path

import pytest

from cyberkv.cybergraph.car import read_car
from cyberkv.cybergraph.chain import closure
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import BlockNotFound, CyberKVError, DigestMismatch, NotFound, Refused, TierFull
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.peers import CarFilePeer
from cyberkv.cybergraph.store import DiskStore, MemoryStore
from cyberkv.cybergraph.transfer import PublishPlan, fetch, plan_publish, publish_car, publish_here
from tests.contracts.progress import Counter
from tests.wire.synthetic import contents, conversation, record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "talk.car"


@pytest.fixture
def planned(index: Index) -> tuple[MemoryStore, PublishPlan]:
    store, root = conversation(blocks=3)
    return store, plan_publish(store, index, root, "public")


def damage(store: MemoryStore, cid: Cid) -> None:
    data = store.get(cid)
    store.delete_many([cid])
    store.put_many([(cid, bytes(len(data)))], hashed=True)


def test_a_car_holds_the_plan_in_its_order(planned: tuple[MemoryStore, PublishPlan], path: Path) -> None:
    store, plan = planned
    watcher = Counter()
    size_bytes = publish_car(store, plan, path, watcher)
    assert size_bytes == path.stat().st_size
    with path.open("rb") as file:
        reader = read_car(file)
        got = list(reader)
    assert reader.roots == (plan.root,)
    assert [cid for cid, _ in got] == list(plan.cids)
    assert dict(got) == contents(store, plan.root)
    assert (
        watcher.phases == [("write", watcher.blocks, watcher.leaf_bytes)] == [("write", plan.blocks, plan.leaf_bytes)]
    )


def test_a_car_can_be_fetched_from(planned: tuple[MemoryStore, PublishPlan], path: Path, index: Index) -> None:
    store, plan = planned
    publish_car(store, plan, path)
    other = MemoryStore()
    with CarFilePeer(path) as peer:
        report = fetch(other, index, plan.root, [peer])
    assert report.blocks_fetched == plan.blocks
    assert report.bytes_fetched == plan.bytes
    assert contents(other, plan.root) == contents(store, plan.root)


def test_writing_again_gives_the_same_file(planned: tuple[MemoryStore, PublishPlan], path: Path) -> None:
    store, plan = planned
    publish_car(store, plan, path)
    first = path.read_bytes()
    publish_car(store, plan, path)
    assert path.read_bytes() == first
    assert list(path.parent.iterdir()) == [path]


def test_a_damaged_block_leaves_the_old_file(planned: tuple[MemoryStore, PublishPlan], path: Path) -> None:
    store, plan = planned
    path.write_bytes(b"old")
    damage(store, plan.cids[-1])
    with pytest.raises(DigestMismatch):
        publish_car(store, plan, path)
    store.delete_many([plan.cids[-1]])
    with pytest.raises(BlockNotFound):
        publish_car(store, plan, path)
    store.put_many(contents(*conversation(blocks=3)).items())
    with pytest.raises(KeyboardInterrupt):
        publish_car(store, plan, path, Counter(stop_at=3))
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file(planned: tuple[MemoryStore, PublishPlan], path: Path) -> None:
    store, plan = planned
    path.write_bytes(b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (plan.bytes // 2, limits[1]))
    try:
        with pytest.raises(TierFull) as caught:
            publish_car(store, plan, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.exit_code == 8
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_is_not_there(planned: tuple[MemoryStore, PublishPlan], tmp_path: Path) -> None:
    store, plan = planned
    with pytest.raises(NotFound, match="nowhere"):
        publish_car(store, plan, tmp_path / "nowhere" / "talk.car")


def test_a_folder_in_place_of_the_file(planned: tuple[MemoryStore, PublishPlan], path: Path) -> None:
    store, plan = planned
    path.mkdir()
    with pytest.raises(CyberKVError):
        publish_car(store, plan, path)
    assert list(path.parent.iterdir()) == [path]


def test_publishing_here_marks_exactly_the_plan(planned: tuple[MemoryStore, PublishPlan], index: Index) -> None:
    store, plan = planned
    record(store, blocks=2, seed="b")
    other = set(store.cids()) - set(plan.cids)
    assert other
    watcher = Counter()
    publish_here(store, index, plan, watcher)
    publish_here(store, index, plan)
    assert index.published() == [plan.root]
    assert all(index.is_public(cid) for cid in closure(store, plan.root))
    assert not any(index.is_public(cid) for cid in other)
    assert watcher.phases == [("check", watcher.blocks, watcher.leaf_bytes)]
    assert plan_publish(store, index, plan.root, "public").public_already == plan.blocks


def test_a_damaged_block_marks_nothing(planned: tuple[MemoryStore, PublishPlan], index: Index) -> None:
    store, plan = planned
    damage(store, plan.cids[-1])
    with pytest.raises(DigestMismatch):
        publish_here(store, index, plan)
    assert index.published() == []
    assert not any(index.is_public(cid) for cid in plan.cids)


# A publish that was killed or is not alone.

CHILD = """
import sys
from pathlib import Path
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import DiskStore
from cyberkv.cybergraph.transfer import plan_publish, publish, publish_car

class Stop:
    blocks = 0
    def phase(self, name, *, blocks_total, bytes_total): pass
    def advance(self, blocks, size_bytes):
        self.blocks += blocks
        if self.blocks >= 9:
            print("half", flush=True)
            sys.stdin.read()

publish.RUN_BYTES = 1
home = Path(sys.argv[1])
with DiskStore(home / "store") as store, Index(home / "index") as index:
    publish_car(store, plan_publish(store, index, Cid.parse(sys.argv[2]), "public"), Path(sys.argv[3]), Stop())
"""


def test_a_killed_publish_leaves_no_half_file_and_is_begun_again(home: Path, path: Path) -> None:
    with DiskStore(home / "store") as store:
        root = record(store, blocks=5)
    command = [sys.executable, "-c", CHILD, str(home), str(root), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"half\n"
        with DiskStore(home / "store") as store, Index(home / "index") as index:
            plan = plan_publish(store, index, root, "public")
            with pytest.raises(Refused, match="another process"):
                publish_car(store, plan, path)
        child.kill()
    [left] = path.parent.iterdir()
    assert left != path
    with DiskStore(home / "store") as store:
        size_bytes = publish_car(store, plan, path)
        with path.open("rb") as file:
            assert dict(read_car(file)) == contents(store, root)
    assert list(path.parent.iterdir()) == [path]
    assert path.stat().st_size == size_bytes
