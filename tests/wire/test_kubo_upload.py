"""What an upload does on a node that is slow of memory, of an old version, full, strict, or not honest."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from cyberkv.cybergraph.access import Identity
from cyberkv.cybergraph.access.receipt import make_receipt
from cyberkv.cybergraph.chain import closure
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import AccessDenied, RpcFailed, TierFull
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.peers.kubo import KuboReport, KuboRpc, RpcAddress, upload
from cyberkv.cybergraph.peers.kubo.upload import PART_NAME
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.transfer import PublishPlan, plan_publish
from cyberkv.cybergraph.transfer.kubo import publish_kubo
from cyberkv.cybergraph.transfer.progress import SILENT, Phase, Progress
from cyberkv.cybergraph.transfer.signed import pin_receipt
from tests.wire.kubo_node import KuboNode, NodeServer, failed
from tests.wire.synthetic import record

BLOCKS = 600
"""Three segments, of 256, 256 and 88 blocks."""
NAME = "cyberkv/talk"

Publish = Callable[..., KuboReport]


@pytest.fixture
def node() -> KuboNode:
    return KuboNode()


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with Index(tmp_path_factory.mktemp("kubo") / "index") as opened:
        yield opened


@pytest.fixture(scope="module")
def plan(store: MemoryStore, index: Index) -> PublishPlan:
    return plan_publish(store, index, record(store, blocks=BLOCKS), "public")


@pytest.fixture
def publish(node: KuboNode, store: MemoryStore, index: Index) -> Iterator[Publish]:
    server = NodeServer(node)

    def run(plan: PublishPlan, *earlier: Cid, progress: Progress = SILENT) -> KuboReport:
        with closing(KuboRpc(RpcAddress.parse(server.url))) as rpc:
            return publish_kubo(store, index, plan, rpc, NAME, earlier, progress)

    yield run
    server.close()


def parts(report: KuboReport) -> tuple[int, int]:
    return report.parts_sent, report.parts_had


def whole(plan: PublishPlan, store: MemoryStore) -> dict[Cid, bytes]:
    return {cid: store.get(cid) for cid in plan.cids}


def test_a_node_gets_everything_once_and_keeps_one_pin(
    node: KuboNode, publish: Publish, plan: PublishPlan, store: MemoryStore
) -> None:
    assert parts(publish(plan)) == (3, 0)
    assert node.blocks == whole(plan, store)
    assert node.pins == {plan.root: NAME}
    assert node.count("dag/import") == 3
    assert node.calls[-1] == ("provide/once", str(plan.root))
    again = publish(plan)
    assert (parts(again), again.bytes_sent) == ((0, 3), 0)
    assert node.count("dag/import") == 3


def test_a_large_part_goes_by_two_connections_at_once(
    node: KuboNode, publish: Publish, plan: PublishPlan, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "SPLIT_BYTES", 300_000)  # the first two parts
    both = threading.Barrier(2, timeout=30)
    node.on_import = lambda _: both.wait() if node.count("dag/import") <= 4 else None
    report = publish(plan)
    assert (parts(report), node.count("dag/import")) == ((3, 0), 5)
    assert (node.blocks, node.pins) == (whole(plan, store), {plan.root: NAME})
    assert report.bytes_sent > plan.bytes


@pytest.mark.parametrize("which", [1, 2])
def test_what_fails_on_either_connection_is_said(
    which: int, node: KuboNode, publish: Publish, plan: PublishPlan, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "SPLIT_BYTES", 300_000)
    full = failed("no space left on device")
    node.before = lambda command, _: full if command == "dag/import" and node.count(command) == 2 + which else None
    with pytest.raises(TierFull):
        publish(plan)
    assert set(node.pins.values()) == {PART_NAME}
    node.before = lambda *_: None
    assert parts(publish(plan)) == (2, 1)
    assert (node.blocks, node.pins) == (whole(plan, store), {plan.root: NAME})


def test_garbage_that_is_collected_at_the_worst_time_costs_a_second_sending(
    node: KuboNode, publish: Publish, plan: PublishPlan, store: MemoryStore
) -> None:
    node.on_import = lambda pinned: None if pinned else node.collect()  # a real one waits for an import that pins
    assert parts(publish(plan)) == (3, 0)
    assert (node.blocks, node.pins) == (whole(plan, store), {plan.root: NAME})
    assert node.count("dag/import") == 6


def test_a_node_that_loses_whatever_it_takes_is_an_error(node: KuboNode, publish: Publish, plan: PublishPlan) -> None:
    def lose(pinned: bool) -> None:
        node.pins.clear()
        node.collect()

    node.on_import = lose
    with pytest.raises(RpcFailed, match="loses blocks before they are pinned"):
        publish(plan)


@pytest.mark.parametrize("name", ["theirs", ""])
def test_pins_of_others_stay_and_those_of_stopped_uploads_go(
    name: str, node: KuboNode, publish: Publish, plan: PublishPlan, store: MemoryStore
) -> None:
    node.blocks = whole(plan, store)
    first, second, _ = plan.conversation.segments
    node.pins = {first: name, second: PART_NAME}
    assert parts(publish(plan)) == (0, 3)
    assert node.pins == {plan.root: NAME, first: name}


def test_pins_that_an_upload_left_when_it_was_stopped_at_its_end_are_removed(
    node: KuboNode, publish: Publish, plan: PublishPlan
) -> None:
    node.before = lambda command, _: failed("it stumbles") if command == "pin/rm" else None
    publish(plan)
    assert sorted(node.pins.values()) == [PART_NAME, PART_NAME, NAME]
    node.before = lambda *_: None
    node.pins[plan.conversation.segments[0]] = "theirs"
    publish(plan)
    assert node.pins == {plan.root: NAME, plan.conversation.segments[0]: "theirs"}


def test_a_block_that_the_node_lost_is_found_missing_and_sent_again(
    node: KuboNode, publish: Publish, plan: PublishPlan, store: MemoryStore
) -> None:
    publish(plan)
    del node.blocks[next(item.cid for item in plan.items if item.kind == "leaf")]
    assert parts(publish(plan)) == (1, 2)
    assert (node.blocks, node.pins) == (whole(plan, store), {plan.root: NAME})


def test_growth_walks_and_sends_only_what_is_new(
    node: KuboNode, publish: Publish, plan: PublishPlan, store: MemoryStore, index: Index
) -> None:
    short = plan_publish(store, index, record(store, blocks=512), "public")
    publish(short)
    node.calls.clear()
    assert parts(publish(plan, short.root)) == (1, 2)
    assert node.pins == {short.root: NAME, plan.root: NAME}
    assert ("pin/update", str(short.root)) in node.calls
    assert not {("pin/add", str(cid)) for cid in short.conversation.segments} & set(node.calls)


@pytest.mark.parametrize("lost", [False, True])
def test_growth_from_a_root_that_is_pinned_no_more(
    lost: bool, node: KuboNode, publish: Publish, plan: PublishPlan, store: MemoryStore, index: Index
) -> None:
    short = plan_publish(store, index, record(store, blocks=512), "public")
    publish(short)
    del node.pins[short.root]
    if lost:
        node.collect()
    assert parts(publish(plan, short.root)) == ((3, 0) if lost else (1, 2))
    assert node.pins == {plan.root: NAME}
    node.collect()
    assert node.blocks == whole(plan, store)


def test_growth_from_a_root_of_which_something_is_lost(
    node: KuboNode, publish: Publish, plan: PublishPlan, store: MemoryStore, index: Index
) -> None:
    """`pin/update` does not look at what it holds for known; the next publication does."""
    short = plan_publish(store, index, record(store, blocks=512), "public")
    publish(short)
    del node.blocks[next(item.cid for item in plan.items if item.kind == "leaf")]
    node.before = lambda command, _: failed("'to' is odd") if command == "pin/update" else None
    assert parts(publish(plan, short.root)) == (2, 1)
    assert node.blocks.keys() >= whole(plan, store).keys()


def test_a_fork_brings_the_public_parent_that_it_links_to(
    node: KuboNode, publish: Publish, store: MemoryStore, index: Index
) -> None:
    parent = record(store, blocks=300, seed="parent")
    index.publish(parent, closure(store, parent))
    fork = plan_publish(store, index, record(store, blocks=4, seed="fork", parent=parent), "public")
    assert fork.conversation.parent == parent
    assert parts(publish(fork)) == (4, 0)  # two segments and the root of the parent, one segment here
    assert node.pins == {fork.root: NAME}
    assert set(node.blocks) == {*fork.cids, *closure(store, parent)}

    other = plan_publish(store, index, record(store, blocks=5, seed="other", parent=parent), "public")
    node.pins[parent] = "theirs"
    assert parts(publish(other)) == (1, 0)
    assert node.pins == {fork.root: NAME, parent: "theirs", other.root: NAME}


def test_an_older_node_is_used_as_far_as_it_answers(
    node: KuboNode, publish: Publish, plan: PublishPlan, store: MemoryStore
) -> None:
    node.lacks, node.names_pins = {"provide/once"}, False
    report = publish(plan)
    assert (report.announced, node.calls[-1]) == (True, ("routing/provide", str(plan.root)))
    assert (node.blocks, set(node.pins)) == (whole(plan, store), {plan.root})
    node.lacks.add("routing/provide")
    report = publish(plan)
    assert (report.announced, report.note) == (False, "it has no command for that")


def test_a_node_that_cannot_announce_says_why(node: KuboNode, publish: Publish, plan: PublishPlan) -> None:
    node.before = lambda command, _: failed("no peers") if command == "provide/once" else None
    report = publish(plan)
    assert (report.announced, report.note, node.count("routing/provide")) == (False, "no peers", 0)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (failed("write blocks/x.tmp: no space left on device"), TierFull),
        ((401, b"401 - Unauthorized"), AccessDenied),
        (failed("leveldb: closed"), RpcFailed),
    ],
)
def test_what_was_pinned_before_a_failure_stays_and_is_not_sent_again(
    answer: tuple[int, bytes], error: type[Exception], node: KuboNode, publish: Publish, plan: PublishPlan
) -> None:
    node.before = lambda command, _: answer if command == "dag/import" and node.count(command) == 2 else None
    with pytest.raises(error):
        publish(plan)
    assert node.pins == {plan.conversation.segments[0]: PART_NAME}
    node.before = lambda *_: None
    node.collect()
    assert parts(publish(plan)) == (2, 1)
    assert node.pins == {plan.root: NAME}


def test_failures_at_random_calls_lose_nothing(
    node: KuboNode, publish: Publish, plan: PublishPlan, store: MemoryStore
) -> None:
    """However often it is stopped, every repeat goes on, and at the end the node is as if nothing had been."""
    rng = random.Random(5)
    node.before = lambda *_: failed("it stumbles") if rng.random() < 0.15 else None
    for _ in range(100):
        try:
            report = publish(plan)
        except RpcFailed:
            node.collect()
        else:
            break
    assert node.blocks == whole(plan, store)
    assert node.pins.pop(plan.root) == NAME
    assert set(node.pins.values()) <= {PART_NAME}  # removing one may have failed as well
    assert node.count("dag/import") < 20, report


def test_progress_counts_what_goes_out_and_what_the_node_walks(
    node: KuboNode, publish: Publish, plan: PublishPlan
) -> None:
    class Count:
        def __init__(self) -> None:
            self.told: dict[Phase, list[int]] = {}

        def phase(self, name: Phase, *, blocks_total: int, bytes_total: int) -> None:
            self.now = self.told[name] = [blocks_total, bytes_total, 0, 0]

        def advance(self, blocks: int, size_bytes: int) -> None:
            self.now[2] += blocks
            self.now[3] += size_bytes

    count = Count()
    publish(plan, progress=count)
    assert count.told == {
        "write": [plan.blocks, plan.leaf_bytes, plan.blocks, plan.leaf_bytes],
        "pin": [plan.blocks, plan.bytes, plan.blocks, plan.bytes],
    }


def test_a_receipt_is_pinned_on_top_of_what_it_signs(
    node: KuboNode, publish: Publish, plan: PublishPlan, store: MemoryStore
) -> None:
    receipt = make_receipt(Identity(bytes(32)), plan.conversation, "cyberkv", None)
    server = NodeServer(node)
    with closing(server), closing(KuboRpc(RpcAddress.parse(server.url))) as rpc:
        publish(plan)
        report = pin_receipt(receipt, rpc, NAME)
        assert node.pins == {plan.root: NAME, receipt.cid(): NAME}
        assert node.blocks == whole(plan, store) | {receipt.cid(): receipt.encode()}
        assert report.bytes_sent < 1000
        assert node.calls[-1] == ("provide/once", str(receipt.cid()))
        sent = node.count("dag/import")
        del node.pins[plan.root]  # somebody let go of the root: then the node walks all of it
        pin_receipt(receipt, rpc, NAME)
        assert node.count("dag/import") == sent + 2
