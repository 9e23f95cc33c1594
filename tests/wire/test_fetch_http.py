"""Fetching over real sockets: from the gateway that ships, and from servers that lie."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cyberkv.cybergraph.car import car_section
from cyberkv.cybergraph.chain import block_cids, closure, load_root
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import (
    BlockNotFound,
    CyberKVError,
    DigestMismatch,
    PeerMisbehaved,
    PeerUnreachable,
    TruncatedCar,
)
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.peers import HttpPeer
from cyberkv.cybergraph.store import DiskStore, MemoryStore
from cyberkv.cybergraph.transfer import fetch
from tests.wire.conftest import HASTY, Served
from tests.wire.liar import CAR, Exchange, lying
from tests.wire.synthetic import BLOCK_SIZE, LAYERS, ROW_BYTES, contents, conversation, record, sum_bytes
from tests.wire.test_http_peer import BEHAVIOURS, Behave, drip, flipped, patience_with, stall

Publish = Callable[..., Served]
PeerAt = Callable[..., HttpPeer]
BLOCK_BYTES = BLOCK_SIZE * ROW_BYTES * LAYERS


def test_a_whole_conversation_comes_as_one_stream_a_segment(index: Index, publish: Publish, peer_at: PeerAt) -> None:
    origin, root = conversation(blocks=300)
    served = publish(origin, root)
    store = MemoryStore()
    report = fetch(store, index, root, [peer_at(served.url)])
    assert set(store.cids()) == set(closure(origin, root))
    assert contents(store, root) == contents(origin, root)
    assert (report.blocks_had, report.blocks_fetched, report.refused) == (0, report.blocks_total, ())
    assert sum("format=car" in request for request in served.requests) == 2
    assert len(served.requests) == 2 + 2 + 2 + 2  # root and model, segments, their streams, the tail


def test_only_what_is_missing_moves(index: Index, publish: Publish, peer_at: PeerAt) -> None:
    origin, root = conversation(blocks=40)
    served = publish(origin, root)
    store = MemoryStore()
    record(store, blocks=33, tail_tokens=1)
    missing = store.missing(closure(origin, root))
    report = fetch(store, index, root, [peer_at(served.url)])
    assert served.body_bytes == report.bytes_fetched == sum_bytes(origin, missing)
    assert sorted(served.requests) == sorted(f"/ipfs/{cid}?format=raw" for cid in missing)
    assert len(missing) == 7 * 3 + 2 + 2  # blocks with two leaves; segment and root; two leaves of the tail
    assert report.blocks_had == report.blocks_total - len(missing)
    served.body_bytes = 0
    assert fetch(store, index, root, [peer_at(served.url)]).blocks_fetched == 0
    assert served.body_bytes == 0


def test_one_missing_leaf_is_one_request(index: Index, publish: Publish, peer_at: PeerAt) -> None:
    origin, root = conversation(blocks=10)
    served = publish(origin, root)
    for victim in closure(origin, root):
        store, _ = conversation(blocks=10)
        store.delete_many([victim])
        served.requests.clear()
        fetch(store, index, root, [peer_at(served.url)])
        assert served.requests == [f"/ipfs/{victim}?format=raw"]


def test_what_is_not_published_cannot_be_fetched(index: Index, publish: Publish, peer_at: PeerAt) -> None:
    origin, root = conversation()
    other = record(origin, blocks=2, seed="b")
    served = publish(origin, other)
    store = MemoryStore()
    with pytest.raises(BlockNotFound, match=str(root)):
        fetch(store, index, root, [peer_at(served.url)])
    assert list(store.cids()) == []


# A server that lies about everything: the error says how, nothing is stored.


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_a_server_that_never_tells_the_truth(index: Index, peer_at: PeerAt, behaviour: str) -> None:
    behave, of_block, _ = BEHAVIOURS[behaviour]
    origin, root = conversation(blocks=3)
    store = MemoryStore()
    with lying(contents(origin, root), behave) as liar, pytest.raises(of_block) as caught:
        fetch(store, index, root, [peer_at(liar.url, patience_with(behaviour))])
    assert caught.value.exit_code in (3, 4, 7)
    assert caught.value.hint
    assert str(root) in str(caught.value)
    assert list(store.cids()) == []
    assert list(index.entries()) == []


# A server that lies about one thing only.


def only_for(victim: Cid, behave: Behave) -> Behave:
    return lambda talk: behave(talk) if talk.cid == victim and not talk.is_car else no_streams(talk)


def no_streams(talk: Exchange) -> None:
    if talk.is_car:
        talk.head("404 Not Found", content_length=0)
    else:
        talk.honest()


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_one_bad_leaf_keeps_the_good_ones(index: Index, peer_at: PeerAt, behaviour: str) -> None:
    behave, of_block, _ = BEHAVIOURS[behaviour]
    origin, root = conversation(blocks=3)
    blocks = contents(origin, root)
    victim = list(blocks)[-4]  # a leaf of the last block
    store = MemoryStore()
    with lying(blocks, only_for(victim, behave)) as liar, pytest.raises(of_block, match=str(victim)):
        fetch(store, index, root, [peer_at(liar.url, patience_with(behaviour))])
    kept = set(store.cids())
    assert root not in kept
    assert victim not in kept
    assert all(store.get(cid) == blocks[cid] for cid in kept)
    assert len([cid for cid in kept if cid.codec == "raw"]) >= 4
    with lying(blocks, no_streams) as honest:
        fetch(store, index, root, [peer_at(honest.url)])
        asked = {target for target in honest.targets if "format=raw" in target}
    assert asked == {f"/ipfs/{cid}?format=raw" for cid in set(blocks) - kept}
    assert contents(store, root) == blocks


# Streams that go wrong. Whatever happened, single blocks bring the rest.


def in_stream(change: Callable[[list[bytes]], bytes]) -> Behave:
    def behave(talk: Exchange) -> None:
        if talk.is_car:
            talk.answer(change(talk.server.sections(talk.cid)))
        else:
            talk.honest()

    return behave


def in_streams_only(behave: Behave) -> Behave:
    return lambda talk: behave(talk) if talk.is_car else talk.honest()


def stranger(number: int) -> bytes:
    data = b"unasked %d" % number
    return car_section(Cid.of(data, "raw", "blake3"), data)


MARKER = b"\n\n[Gateway Error: CAR stream truncated, response is incomplete]"
STREAMS: dict[str, tuple[Behave, str]] = {
    "many strangers": (
        in_stream(lambda parts: b"".join([parts[0], *map(stranger, range(2049)), *parts[1:]])), "not asked for"
    ),
    "one block less": (in_stream(lambda parts: b"".join(parts[:-1])), "before it is complete"),
    "the header alone": (in_stream(lambda parts: parts[0]), "before it is complete"),
    "cut inside": (in_stream(lambda parts: b"".join(parts)[:-1]), "ends"),
    "a page": (lambda talk: talk.answer(b"<html>", "text/html") if talk.is_car else talk.honest(), "text/html"),
    "an error": (lambda talk: talk.head("500 No", content_length=0) if talk.is_car else talk.honest(), "status 500"),
    "a gateway's marker": (
        in_stream(lambda parts: b"".join(parts[:4]) + MARKER),
        "says of its CAR stream: 'CAR stream truncated, response is incomplete'",
    ),
    "a gateway's marker inside a block": (
        in_stream(lambda parts: b"".join(parts[:4])[:-90] + MARKER),
        "says of its CAR stream: 'CAR stream truncated, response is incomplete'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("stream", STREAMS)
def test_a_bad_stream_is_recorded_and_made_good(index: Index, peer_at: PeerAt, stream: str) -> None:
    behave, reason = STREAMS[stream]
    origin, root = conversation(blocks=260)
    blocks = contents(origin, root)
    store = MemoryStore()
    with lying(blocks, behave) as liar:
        report = fetch(store, index, root, [peer_at(liar.url)])
        streams = [target for target in liar.targets if "format=car" in target]
    assert contents(store, root) == blocks
    assert set(store.cids()) == set(blocks)
    assert [(refusal.peer, refusal.cid) for refusal in report.refused] == [
        (liar.url, load_root(store, root).segments[0])
    ]
    assert reason in report.refused[0].reason
    assert len(streams) == 1


def test_a_flipped_bit_in_a_stream_ends_the_trust(index: Index, peer_at: PeerAt) -> None:
    origin, root = conversation(blocks=3)
    blocks = contents(origin, root)
    store = MemoryStore()
    behave = in_stream(lambda parts: flipped(b"".join(parts)))
    with lying(blocks, behave) as liar, pytest.raises(DigestMismatch):
        fetch(store, index, root, [peer_at(liar.url)])
    kept = [cid for cid in store.cids() if cid.codec == "raw"]
    assert len(kept) == 5  # all leaves of three blocks, but the last
    assert not store.has(root)


def test_a_stream_cut_at_every_boundary(index: Index, peer_at: PeerAt) -> None:
    origin, root = conversation(blocks=3)
    blocks = contents(origin, root)
    segment = load_root(origin, root).segments[0]
    with lying(blocks) as honest:
        parts = honest.sections(segment)
    for count in range(1, len(parts)):
        for extra in (0, 40):
            cut = b"".join(parts[:count]) + parts[count][:extra]

            def behave(talk: Exchange, cut: bytes = cut) -> None:
                if talk.is_car:
                    talk.answer(cut)
                elif talk.cid in (root, segment, load_root(origin, root).model):
                    talk.honest()
                else:
                    talk.head("404 Not Found", content_length=0)

            store = MemoryStore()
            with lying(blocks, behave) as liar, pytest.raises(TruncatedCar):
                fetch(store, index, root, [peer_at(liar.url)])
            kept = set(store.cids())
            assert root not in kept
            arrived = [cid for cid in blocks if car_section(cid, blocks[cid]) in parts[:count]]
            assert {cid for cid in arrived if cid.codec == "raw"} == {cid for cid in kept if cid.codec == "raw"}
            with lying(blocks, no_streams) as honest:
                fetch(store, index, root, [peer_at(honest.url)])
                asked = {target for target in honest.targets if "format=raw" in target}
            assert asked == {f"/ipfs/{cid}?format=raw" for cid in set(blocks) - kept}
            assert contents(store, root) == blocks


def test_a_stream_that_stalls_or_drips_is_left(index: Index, peer_at: PeerAt) -> None:
    origin, root = conversation(blocks=3)
    for slow in (stall, drip):
        with lying(contents(origin, root), in_streams_only(slow)) as liar:
            report = fetch(MemoryStore(), index, root, [peer_at(liar.url, HASTY)])
        assert report.refused


def test_an_endless_stream_of_sound_strangers_ends(index: Index, peer_at: PeerAt) -> None:
    origin, root = conversation(blocks=3)

    def flood(talk: Exchange) -> None:
        if not talk.is_car:
            talk.head("404 Not Found", content_length=0) if talk.cid.codec == "raw" else talk.honest()
            return
        talk.head(content_type=CAR, connection="close")
        talk.send(talk.server.sections(talk.cid)[0])
        number = 0
        while not talk.server.ended.is_set():
            data = number.to_bytes(4, "big") * 1000
            talk.send(car_section(Cid.of(data, "raw", "blake3"), data))
            number += 1

    store = MemoryStore()
    with lying(contents(origin, root), flood) as liar, pytest.raises(PeerMisbehaved, match="not asked for"):
        fetch(store, index, root, [peer_at(liar.url)])
    assert set(store.cids()) <= set(closure(origin, root))


# Several peers.


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
@pytest.mark.parametrize("lie_about", ["everything", "leaves"])
def test_an_honest_peer_makes_good_for_a_lying_one(
    index: Index, peer_at: PeerAt, behaviour: str, lie_about: str
) -> None:
    behave, error, _ = BEHAVIOURS[behaviour]
    origin, root = conversation(blocks=3)
    blocks = contents(origin, root)

    def first(talk: Exchange) -> None:
        behave(talk) if lie_about == "everything" or talk.cid.codec == "raw" else no_streams(talk)

    store = MemoryStore()
    with lying(blocks, first) as liar, lying(blocks) as honest:
        report = fetch(store, index, root, [peer_at(liar.url, patience_with(behaviour)), peer_at(honest.url)])
    assert contents(store, root) == blocks
    caught = {refusal.peer for refusal in report.refused}
    assert caught <= (set() if error is BlockNotFound else {liar.url})
    assert caught or error is BlockNotFound or lie_about == "leaves", "the other may have given every leaf meanwhile"
    if lie_about == "everything" and error is not BlockNotFound:
        assert {target.split("?")[0] for target in liar.targets} == {f"/ipfs/{root}"}, "a liar was asked again"


def test_the_most_telling_reason_is_given(index: Index, peer_at: PeerAt) -> None:
    origin, root = conversation()
    blocks = contents(origin, root)
    reasons: list[tuple[list[Behave], type[CyberKVError]]] = [
        ([lambda talk: talk.answer(b"wrong"), Exchange.hang], DigestMismatch),
        ([Exchange.hang, lambda talk: talk.answer(b"wrong")], DigestMismatch),
        ([lambda talk: talk.head("404 No", content_length=0), Exchange.hang], PeerUnreachable),
        ([Exchange.hang, lambda talk: talk.answer(b"", "text/html")], PeerMisbehaved),
    ]
    for (one, two), error in reasons:
        with lying(blocks, one) as first, lying(blocks, two) as second, pytest.raises(error):
            fetch(MemoryStore(), index, root, [peer_at(first.url, HASTY), peer_at(second.url, HASTY)])


# A fetch that is killed.

CHILD = """
import sys
from pathlib import Path
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.peers import HttpPeer
from cyberkv.cybergraph.store import DiskStore
from cyberkv.cybergraph.transfer import fetch

class Tell:
    def phase(self, name, *, blocks_total, bytes_total): pass
    def advance(self, blocks, size_bytes): print(".", flush=True)

home, root, url, budget = Path(sys.argv[1]), Cid.parse(sys.argv[2]), sys.argv[3], int(sys.argv[4])
with DiskStore(home / "store") as store, Index(home / "index") as index, HttpPeer(url) as peer:
    fetch(store, index, root, [peer], progress=Tell(), budget_bytes=budget)
"""


@pytest.mark.parametrize(("streams", "kill_after"), [(True, 5), (True, 80), (False, 40), (False, 80)])
def test_a_killed_fetch_goes_on_where_it_stopped(
    tmp_path: Path, peer_at: PeerAt, streams: bool, kill_after: int
) -> None:
    origin, root = conversation(blocks=30)
    blocks = contents(origin, root)

    def halting(talk: Exchange) -> None:
        """Answers for a while, then holds its breath."""
        if talk.is_car and streams:
            parts = talk.server.sections(talk.cid)
            talk.head(content_type=CAR, content_length=sum(map(len, parts)))
            talk.send(b"".join(parts[: kill_after + 1]))
            talk.hang()
        elif len(talk.server.targets) > kill_after + 10:
            talk.hang()
        else:
            no_streams(talk)

    with lying(blocks, halting) as server:
        arguments = [str(tmp_path), str(root), server.url, str(BLOCK_BYTES)]
        child = subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE)
        with child:
            assert child.stdout is not None
            for _ in range(kill_after):
                assert child.stdout.readline() == b".\n"
            child.kill()
        assert child.returncode == -signal.SIGKILL
    with DiskStore(tmp_path / "store") as store, Index(tmp_path / "index") as index:
        kept = set(store.cids())
        assert not store.has(root)
        assert kept < set(blocks)
        assert len(kept) > 10 or kill_after < 80
        with lying(blocks, no_streams) as honest:
            report = fetch(store, index, root, [peer_at(honest.url)])
            asked = sorted(target for target in honest.targets if "format=raw" in target)
        rest = set(blocks) - kept
        assert asked == sorted(f"/ipfs/{cid}?format=raw" for cid in rest)
        assert (report.blocks_had, report.blocks_fetched) == (len(kept), len(rest))
        assert report.bytes_fetched == sum(len(blocks[cid]) for cid in rest)
        assert contents(store, root) == blocks
        assert len(list(index.entries())) == len(list(block_cids(store, load_root(store, root))))
