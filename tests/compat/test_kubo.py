"""Against a real Kubo node: what we publish is pinned and served by it, and comes back from it."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import ipfshttpclient
import pytest

from cyberkv.cybergraph.car import car_head, car_header
from cyberkv.cybergraph.cid import Buffer, Cid
from cyberkv.cybergraph.errors import AccessDenied, BlockNotFound, DigestMismatch, PeerUnreachable
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.peers import HttpPeer, Peer
from cyberkv.cybergraph.peers.kubo import Credential, KuboPeer, KuboRpc, RpcAddress, kubo_health
from cyberkv.cybergraph.peers.kubo.rpc import Multipart
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.transfer.kubo import publish_kubo
from cyberkv.cybergraph.transfer.plan import plan_publish
from cyberkv.cybergraph.transfer.unpin import unpin
from tests.compat.daemon import BINARY, Daemon
from tests.compat.places import need
from tests.contracts.peer import PeerContract
from tests.wire.synthetic import record

pytestmark = pytest.mark.compat

BLOCKS = 300
"""Two segments, which are two parts; the second goes in one stream with the root."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    need("Kubo", BINARY.exists())
    running = Daemon(tmp_path_factory.mktemp("kubo") / "repo")
    yield running
    running.stop()


@pytest.fixture
def rpc(daemon: Daemon) -> Iterator[KuboRpc]:
    opened = KuboRpc(RpcAddress.parse(daemon.api))
    yield opened
    for pin in _pins(opened):
        opened.json("pin/rm", pin)
    list(opened.lines("repo/gc"))
    opened.close()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index(tmp_path / "index") as opened:
        yield opened


def _pins(rpc: KuboRpc) -> dict[str, str]:
    lines = rpc.lines("pin/ls", options={"type": "recursive", "names": "true", "stream": "true"})
    return {line["Cid"]: line.get("Name", "") for line in lines if line["Cid"].startswith("baf")}


def _add(rpc: KuboRpc, blocks: Iterable[tuple[Cid, Buffer]]) -> None:
    def car() -> Iterator[Buffer]:
        yield car_header([])
        for cid, data in blocks:
            yield from (car_head(cid, len(data)), data)

    list(rpc.lines("dag/import", options={"pin-roots": "false"}, body=Multipart(car())))


class Moody(MemoryStore):
    """Fails when it is read for the n-th time, as a process that is stopped."""

    reads_left = -1

    def get(self, cid: Cid) -> bytes:
        self.reads_left -= 1
        if self.reads_left == 0:
            raise KeyboardInterrupt
        return super().get(cid)


class TestKuboPeer(PeerContract):
    @pytest.fixture(autouse=True)
    def _node(self, daemon: Daemon, rpc: KuboRpc) -> None:
        self.daemon, self.rpc = daemon, rpc

    def offer(self, blocks: Mapping[Cid, bytes], root: Cid) -> Peer:
        _add(self.rpc, ((cid, data) for cid, data in blocks.items() if Cid.of(data, cid.codec, cid.hash_name) == cid))
        for cid, data in blocks.items():
            if Cid.of(data, cid.codec, cid.hash_name) != cid:
                self._damage(cid, data)
        return KuboPeer(self.daemon.api)

    def _damage(self, cid: Cid, data: bytes) -> None:
        """Overwrite the file in which the node keeps a block."""
        good = dict(self.blocks_before).get(cid)
        assert good is not None
        _add(self.rpc, [(cid, good)])
        (file,) = [path for path in self.daemon.repo.rglob("*.data") if path.read_bytes() == good]
        file.chmod(0o600)
        file.write_bytes(data)

    def test_wrong_bytes_never_come_out(self, blocks: dict[Cid, bytes], root: Cid) -> None:
        self.blocks_before = blocks
        victim = list(blocks)[-1]
        wrong = {**blocks, victim: bytes([blocks[victim][0] ^ 1]) + blocks[victim][1:]}
        with self.offer(wrong, root) as peer, pytest.raises(DigestMismatch):
            list(peer.get_many([victim]))


def test_a_published_conversation_is_whole_pinned_and_kept_by_gc(rpc: KuboRpc, index: Index, daemon: Daemon) -> None:
    store = MemoryStore()
    root = record(store, blocks=BLOCKS)
    plan = plan_publish(store, index, root, "public")
    report = publish_kubo(store, index, plan, rpc, "cyberkv/talk")
    assert (report.parts_sent, report.parts_had) == (2, 0)
    assert report.bytes_sent > plan.bytes
    assert (report.announced, "online mode" in str(report.note)) == (False, True)
    assert _pins(rpc) == {str(plan.root): "cyberkv/talk"}
    list(rpc.lines("repo/gc"))
    with KuboPeer(daemon.api) as peer:
        got = dict(peer.get_dag(plan.root))
    assert got == {cid: store.get(cid) for cid in plan.cids}
    with HttpPeer(daemon.gateway) as gateway:
        assert dict(gateway.get_dag(plan.root)) == got

    again = publish_kubo(store, index, plan, rpc, "cyberkv/talk")
    assert (again.parts_sent, again.parts_had) == (0, 2)
    assert again.bytes_sent == 0


def test_a_stopped_upload_goes_on_where_it_stopped(rpc: KuboRpc, index: Index) -> None:
    store = Moody()
    plan = plan_publish(store, index, record(store, blocks=BLOCKS), "public")
    store.reads_left = 1 + 1 + 3 * 256 + 60  # model, first segment, into the second
    with pytest.raises(KeyboardInterrupt):
        publish_kubo(store, index, plan, rpc, "cyberkv/talk")
    assert set(_pins(rpc)) == {str(plan.conversation.segments[0])}
    list(rpc.lines("repo/gc"))
    report = publish_kubo(store, index, plan, rpc, "cyberkv/talk")
    assert (report.parts_sent, report.parts_had) == (1, 1)
    assert _pins(rpc) == {str(plan.root): "cyberkv/talk"}


def test_a_longer_conversation_sends_what_is_new_and_keeps_both(rpc: KuboRpc, index: Index, daemon: Daemon) -> None:
    store = MemoryStore()
    short = plan_publish(store, index, record(store, blocks=256), "public")
    publish_kubo(store, index, short, rpc, "cyberkv/talk")
    long = plan_publish(store, index, record(store, blocks=BLOCKS), "public")
    report = publish_kubo(store, index, long, rpc, "cyberkv/talk", [short.root])
    assert (report.parts_sent, report.parts_had) == (1, 1)
    assert set(_pins(rpc)) == {str(short.root), str(long.root)}
    with KuboPeer(daemon.api) as peer:
        assert {cid for cid, _ in peer.get_dag(long.root)} == set(long.cids)


def test_a_graph_with_a_hole_comes_without_it_and_that_is_said(rpc: KuboRpc, index: Index, daemon: Daemon) -> None:
    store = MemoryStore()
    plan = plan_publish(store, index, record(store), "public")
    hole = next(cid for cid in plan.cids if cid.codec == "raw")
    _add(rpc, ((cid, store.get(cid)) for cid in plan.cids if cid != hole))
    got: list[Cid] = []
    with KuboPeer(daemon.api) as peer:
        with pytest.raises(BlockNotFound) as caught:
            got.extend(cid for cid, _ in peer.get_dag(plan.root))
        assert (caught.value.data["cids"], set(got)) == ([str(hole)], {*plan.cids} - {hole})
        with pytest.raises(BlockNotFound):
            list(peer.get_many([hole]))
        with pytest.raises(BlockNotFound):
            list(peer.get_dag(hole))


def test_a_node_with_authorisations_opens_to_the_right_credential_only(tmp_path: Path) -> None:
    need("Kubo", BINARY.exists())
    rules = {"us": {"AuthSecret": "bearer:swordfish", "AllowedPaths": ["/api/v0/block"]}}
    node = Daemon(tmp_path / "repo", API__Authorizations=rules)
    try:
        leaf = b"guarded"
        cid = Cid.of(leaf, "raw", "sha2-256")
        right, wrong = Credential.parse("bearer:swordfish"), Credential.parse("bearer:herring")
        opened = KuboRpc(RpcAddress.parse(node.api), right)
        list(opened.lines("block/put", options={"cid-codec": "raw", "mhtype": "sha2-256"}, body=Multipart([leaf])))
        with KuboPeer(node.api, right) as peer:
            assert list(peer.get_many([cid])) == [(cid, leaf)]
        for bad in (wrong, None):
            with KuboPeer(node.api, bad) as peer, pytest.raises(AccessDenied) as caught:
                list(peer.get_many([cid]))
            assert "herring" not in f"{caught.value!r}{caught.value.data}{caught.value.__cause__!r}"
        with pytest.raises(AccessDenied):
            list(opened.lines("pin/ls"))
        opened.close()
        client = ipfshttpclient.Client(node.api + "/http", headers={"Authorization": "Bearer swordfish"})
        with KuboPeer.from_client(client) as peer:
            assert list(peer.get_many([cid])) == [(cid, leaf)]
    finally:
        node.stop()


@pytest.mark.filterwarnings("ignore::FutureWarning")  # that package and urllib3 2
def test_a_client_of_the_older_package_opens_the_same_node(rpc: KuboRpc, daemon: Daemon) -> None:
    with ipfshttpclient.Client(daemon.api + "/http") as client:
        leaf = b"put by the older client"
        cid = Cid.of(leaf, "raw", "sha2-256")
        _add(rpc, [(cid, leaf)])
        assert client.block.get(str(cid)) == leaf
        with KuboPeer.from_client(client) as peer:
            assert list(peer.get_many([cid])) == [(cid, leaf)]


def test_a_node_that_is_gone_is_unreachable(tmp_path: Path) -> None:
    with KuboPeer("http://127.0.0.1:9") as peer, pytest.raises(PeerUnreachable):
        list(peer.get_many([Cid.of(b"x", "raw", "sha2-256")]))


def test_a_node_that_would_announce_every_block_is_advised_to_change(rpc: KuboRpc, tmp_path: Path) -> None:
    health = kubo_health(rpc)
    assert health.version == "0.43.1"
    assert health.strategy == "all"
    assert "Provide.Strategy roots" in str(health.advice)
    node = Daemon(tmp_path / "repo", Provide__Strategy="roots")
    try:
        opened = KuboRpc(RpcAddress.parse(node.api))
        assert (kubo_health(opened).strategy, kubo_health(opened).advice) == ("roots", None)
        opened.close()
    finally:
        node.stop()


def test_what_is_unpinned_goes_and_what_is_not_pinned_is_no_error(rpc: KuboRpc, index: Index, daemon: Daemon) -> None:
    store = MemoryStore()
    gone, stays = record(store, blocks=3, seed="gone"), record(store, blocks=3, seed="stays")
    for root in (gone, stays):
        publish_kubo(store, index, plan_publish(store, index, root, "public"), rpc, f"cyberkv/{root}")
    assert {str(gone), str(stays)} <= _pins(rpc).keys()
    unpin(rpc, [gone])
    assert str(gone) not in _pins(rpc)
    unpin(rpc, [gone])  # again: the node says in its own words that it is not pinned
    list(rpc.lines("repo/gc"))
    held = daemon.digests()
    assert gone.digest not in held
    assert stays.digest in held  # the control
