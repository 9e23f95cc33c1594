"""A Kubo node as a source that lies: wrong bytes, too many of them, streams that break off or never were any."""

import io
import threading
from collections.abc import Callable, Iterator

import pytest

from cyberkv.cybergraph.car import write_car
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import (
    BlockNotFound,
    CyberKVError,
    DigestMismatch,
    LimitExceeded,
    MalformedCar,
    PeerMisbehaved,
    PeerUnreachable,
    RpcFailed,
    TruncatedCar,
)
from cyberkv.cybergraph.limits import MAX_LEAF_BYTES, MAX_NODE_BYTES
from cyberkv.cybergraph.peers.kubo import KuboPeer
from cyberkv.cybergraph.peers.kubo.peer import CONNECTIONS
from cyberkv.cybergraph.staging import heap_room
from tests.wire.kubo_node import Answer, KuboNode, NodeServer, failed
from tests.wire.synthetic import contents, conversation

LEAF = Cid.of(b"leaf", "raw", "blake3")
NODE = Cid.of(b"\xa0", "dag-cbor", "sha2-256")

Serve = Callable[[Answer], KuboPeer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    node = KuboNode()
    server = NodeServer(node)
    peers: list[KuboPeer] = []

    def answering(answer: Answer) -> KuboPeer:
        node.before = lambda *_: answer
        peers.append(KuboPeer(server.url))
        return peers[-1]

    yield answering
    for peer in peers:
        peer.close()
    server.close()


BLOCKS: dict[str, tuple[Cid, Answer, type[CyberKVError]]] = {
    "another leaf": (LEAF, (200, b"loaf"), DigestMismatch),
    "another node": (NODE, (200, b"\xa1"), DigestMismatch),
    "nothing": (LEAF, (200, b""), DigestMismatch),
    "too large a leaf": (LEAF, (200, bytes(MAX_LEAF_BYTES + 1)), PeerMisbehaved),
    "too large a node": (NODE, (200, bytes(MAX_NODE_BYTES + 1)), PeerMisbehaved),
    "absent": (LEAF, failed("block was not found locally (offline): ipld: could not find it"), BlockNotFound),
    "broken": (LEAF, failed("input/output error"), RpcFailed),
}


@pytest.mark.parametrize("case", BLOCKS)
def test_a_block_is_right_or_an_error(case: str, serve: Serve) -> None:
    cid, answer, error = BLOCKS[case]
    with pytest.raises(error):
        list(serve(answer).get_many([cid]))
    assert dict(serve((200, b"leaf")).get_many([LEAF])) == {LEAF: b"leaf"}  # the control


def _car(blocks: dict[Cid, bytes], root: Cid) -> bytes:
    file = io.BytesIO()
    write_car(file, [root], blocks.items(), hashed=True)
    return file.getvalue()


STORE, ROOT = conversation(blocks=3)
WHOLE = contents(STORE, ROOT)
LAST = list(WHOLE)[-1]
STREAM = _car(WHOLE, ROOT)
STREAMS: dict[str, tuple[Answer, type[CyberKVError]]] = {
    "a wrong block": ((200, _car({**WHOLE, LAST: bytes(len(WHOLE[LAST]))}, ROOT)), DigestMismatch),
    "cut inside a block": ((200, STREAM[:-1]), TruncatedCar),
    "cut inside the header": ((200, STREAM[:10]), TruncatedCar),
    "nothing": ((200, b""), TruncatedCar),
    "cut between blocks": ((200, _car({cid: WHOLE[cid] for cid in WHOLE if cid != LAST}, ROOT)), BlockNotFound),
    "a hole": ((200, _car({cid: WHOLE[cid] for cid in WHOLE if cid != list(WHOLE)[5]}, ROOT)), BlockNotFound),
    "a page": ((200, b"<!doctype html>" + b" " * 400), MalformedCar),
    "a section without end": ((200, STREAM + b"\xff" * 16), LimitExceeded),
    "a block too large": ((200, STREAM + b"\xff\xff\xff\x07" + LEAF + bytes(1 << 20)), LimitExceeded),
    "absent": (failed("block was not found locally (offline): ipld: could not find it"), BlockNotFound),
    "broken": (failed("input/output error"), RpcFailed),
}


@pytest.mark.parametrize("case", STREAMS)
def test_a_stream_is_right_as_far_as_it_goes(case: str, serve: Serve) -> None:
    answer, error = STREAMS[case]
    got: dict[Cid, bytes] = {}
    with pytest.raises(error):
        got.update((cid, bytes(data)) for cid, data in serve(answer).get_dag(ROOT))
    assert got.items() <= WHOLE.items()
    assert dict(serve((200, STREAM)).get_dag(ROOT)) == WHOLE  # the control


# A node that takes its time, and a peer that is given up meanwhile.

LEAVES = [Cid.of(bytes([number]), "raw", "blake3") for number in range(4 * CONNECTIONS)]


class SlowNode(KuboNode):
    """Answers nothing before it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Semaphore(0)
        self.go = threading.Event()
        self.before = self._wait

    def _wait(self, command: str, arg: str) -> Answer:
        self.asked.release()
        assert self.go.wait(30)
        return 200, b"late"

    def await_calls(self, count: int) -> None:
        for _ in range(count):
            assert self.asked.acquire(timeout=30)


@pytest.fixture
def slow() -> Iterator[tuple[SlowNode, str]]:
    node = SlowNode()
    server = NodeServer(node)
    yield node, server.url
    node.go.set()
    server.close()


@pytest.mark.parametrize("stop", [KuboPeer.close, KuboPeer.abort])
def test_what_is_given_up_fails_as_unreachable_and_begins_no_more_calls(
    slow: tuple[SlowNode, str], stop: Callable[[KuboPeer], None]
) -> None:
    node, url = slow
    caught: list[BaseException] = []
    with KuboPeer(url) as peer:

        def ask() -> None:
            try:
                list(peer.read_many(LEAVES, heap_room))
            except BaseException as error:
                caught.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        node.await_calls(CONNECTIONS)
        stop(peer)
        asking.join(30)
        assert not asking.is_alive()
    assert [type(error) for error in caught] == [PeerUnreachable]
    assert len(node.calls) == CONNECTIONS


def test_a_peer_that_was_given_up_may_be_asked_again_and_a_closed_one_may_not(slow: tuple[SlowNode, str]) -> None:
    node, url = slow
    node.go.set()
    with KuboPeer(url) as peer:
        peer.abort()
        assert dict(peer.read_many(LEAVES, heap_room)) == dict.fromkeys(LEAVES, b"late")
    calls = len(node.calls)
    for ask in (lambda: peer.read_many(LEAVES, heap_room), lambda: peer.read_dag(NODE, heap_room)):
        with pytest.raises(PeerUnreachable):
            list(ask())
    assert len(node.calls) == calls == len(LEAVES)
