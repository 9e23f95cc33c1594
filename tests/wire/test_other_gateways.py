"""Gateways that do it another way, as the specification lets them: single blocks only, streams in another order."""

from collections.abc import Callable

import pytest

from cyberkv.cybergraph.car import car_header, car_section
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import MalformedCar, NotOffered, TruncatedCar
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.peers import HttpPeer
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.transfer import fetch
from tests.wire.conftest import CALM
from tests.wire.liar import Exchange, lying
from tests.wire.synthetic import contents, conversation
from tests.wire.test_fetch_http import in_stream, stranger

PeerAt = Callable[..., HttpPeer]
Sections = list[bytes]


@pytest.mark.parametrize("status", [400, 405, 406, 415, 501])
def test_a_gateway_of_single_blocks_is_no_bad_one(index: Index, peer_at: PeerAt, status: int) -> None:
    origin, root = conversation(blocks=260)
    blocks = contents(origin, root)

    def single(talk: Exchange) -> None:
        talk.head(f"{status} No", content_length=0) if talk.is_car else talk.honest()

    store = MemoryStore()
    with lying(blocks, single) as server:
        report = fetch(store, index, root, [peer_at(server.url)])
        asked = [target for target in server.targets if "format=car" in target]
    assert contents(store, root) == blocks
    assert report.refused == ()
    assert [source.state for source in report.sources] == ["ok"]
    assert len(asked) == 1, "it was asked for a stream again"


def test_control_a_gateway_that_forbids_streams_is_named(index: Index, peer_at: PeerAt) -> None:
    origin, root = conversation(blocks=3)

    def forbids(talk: Exchange) -> None:
        talk.head("403 No", content_length=0) if talk.is_car else talk.honest()

    with lying(contents(origin, root), forbids) as server:
        report = fetch(MemoryStore(), index, root, [peer_at(server.url)])
    assert [refusal.peer for refusal in report.refused] == [server.url]


def test_a_single_block_is_never_merely_not_offered(peer_at: PeerAt) -> None:
    origin, root = conversation(blocks=1)
    with lying(contents(origin, root), lambda talk: talk.head("406 No", content_length=0)) as server:
        peer = peer_at(server.url)
        with pytest.raises(NotOffered):
            list(peer.get_dag(root))
        with pytest.raises(Exception, match="status 406") as caught:
            list(peer.get_many([root]))
    assert not isinstance(caught.value, NotOffered)


def foreign(cid: bytes, data: bytes) -> bytes:
    return bytes([len(cid) + len(data)]) + cid + data


IDENTITY = foreign(bytes.fromhex("01550005") + b"hello", b"hello")
NOTHING = foreign(bytes.fromhex("01550000"), b"")
SHA2_512 = foreign(bytes.fromhex("01551340") + bytes(64), b"x")
VERSION_0 = foreign(bytes.fromhex("1220") + bytes(32), b"x")


def breadth_first(parts: Sections) -> bytes:
    """Header, segment, then all blocks, then all leaves. A block comes with its two leaves behind it."""
    rest = parts[2:]
    return b"".join([*parts[:2], *rest[0::3], *rest[1::3], *rest[2::3]])


def ask_for_nothing(parts: Sections) -> bytes:
    return b"".join([car_header([]), *parts[1:]])


ODD: dict[str, Callable[[Sections], bytes]] = {
    "a stranger first": lambda parts: b"".join([parts[0], stranger(1), *parts[1:]]),
    "strangers everywhere": lambda parts: parts[0] + b"".join(stranger(at) + part for at, part in enumerate(parts[1:])),
    "a stranger last": lambda parts: b"".join([*parts, stranger(1)]),
    "parents last": lambda parts: b"".join([parts[0], *reversed(parts[1:])]),
    "everything twice": lambda parts: b"".join([parts[0], *(part * 2 for part in parts[1:])]),
    "identity blocks": lambda parts: (IDENTITY + NOTHING).join(parts) + NOTHING,
    "blocks under CIDs of other forms": lambda parts: b"".join([*parts[:3], SHA2_512, VERSION_0, *parts[3:]]),
    "no roots": ask_for_nothing,
    "other roots": lambda parts: b"".join([car_header([Cid.of(b"x", "raw", "blake3")] * 3), *parts[1:]]),
}


@pytest.mark.parametrize("odd", [*ODD, "breadth first"])
def test_an_odd_stream_is_read(index: Index, peer_at: PeerAt, odd: str) -> None:
    origin, root = conversation(blocks=260, tail_tokens=0)
    blocks = contents(origin, root)
    change = ODD.get(odd, breadth_first)
    store = MemoryStore()
    with lying(blocks, in_stream(change)) as server:
        report = fetch(store, index, root, [peer_at(server.url)])
        single = [target for target in server.targets if "format=raw" in target]
    assert contents(store, root) == blocks
    assert set(store.cids()) == set(blocks)
    assert report.refused == ()
    assert len(single) == 4, "root, model and segments were asked for; the streams had the rest"


def test_what_is_no_cid_is_not_passed_over(peer_at: PeerAt) -> None:
    origin, root = conversation(blocks=1)
    for bad in (b"\x05\x02\x55\x00\x00x", b"\x02\x01\x55", b"\x00", b"\x04\x01\x55\x00\x05"):
        with (
            lying(contents(origin, root), in_stream(lambda parts, bad=bad: parts[0] + bad + parts[1])) as server,
            pytest.raises(MalformedCar, match="CAR at byte"),
        ):
            list(peer_at(server.url).get_dag(root))


def test_an_endless_stream_of_foreign_blocks_ends(peer_at: PeerAt) -> None:
    origin, root = conversation(blocks=1)

    def flood(talk: Exchange) -> None:
        talk.head(content_type="application/vnd.ipld.car; version=1", connection="close")
        talk.send(car_header([root]))
        while not talk.server.ended.is_set():
            talk.send(IDENTITY * 4000)

    with lying(contents(origin, root), flood) as server, pytest.raises(Exception, match="more bytes than any block"):
        list(peer_at(server.url).get_dag(root))
    assert server.sent_bytes < 32 << 20


@pytest.mark.parametrize(
    "said", ["CAR stream truncated, response is incomplete", "Response truncated - unable to retrieve remaining data"]
)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_gateway_says_that_it_could_not_go_on(said: str, at_once: bool) -> None:
    origin, root = conversation(blocks=1)

    def cut(talk: Exchange) -> None:
        body = b"".join(talk.server.sections(talk.cid)[:3])
        marker = f"\n\n[Gateway Error: {said}]".encode()
        talk.head(content_type="application/vnd.ipld.car", content_length=len(body) + len(marker))
        for piece in [body + marker] if at_once else [body + marker[:3], marker[3:20], marker[20:]]:
            talk.send(piece)

    with lying(contents(origin, root), cut) as server, HttpPeer(server.url, patience=CALM) as peer:
        got: list[Cid] = []
        with pytest.raises(TruncatedCar, match="says of its CAR stream") as caught:
            got.extend(cid for cid, _ in peer.get_dag(root))
    assert said in caught.value.message
    assert len(got) == 2


def test_what_looks_like_a_marker_inside_a_sound_block_is_none(index: Index, peer_at: PeerAt) -> None:
    data = b"[Gateway Error: CAR stream truncated, response is incomplete]"
    cid = Cid.of(data, "raw", "blake3")

    def sends(talk: Exchange) -> None:
        talk.answer(car_header([cid]) + car_section(cid, data))

    with lying({cid: data}, sends) as server:
        assert list(peer_at(server.url).get_dag(cid)) == [(cid, data)]


def test_a_page_is_called_a_page(peer_at: PeerAt) -> None:
    page = b"<!doctype html><html><head><title> Sign in to\tCaf\xc3\xa9 </title>" + b"x" * 10_000
    origin, root = conversation(blocks=1)
    with lying(contents(origin, root), lambda talk: talk.answer(page, "text/html; charset=utf-8")) as server:
        for ask in (lambda peer: peer.get_many([root]), lambda peer: peer.get_dag(root)):
            with pytest.raises(Exception, match="web page") as caught:
                list(ask(peer_at(server.url)))
            assert "Sign in to\\tCaf\u00e9" in str(caught.value)
            assert "log in" in caught.value.hint  # type: ignore[attr-defined]
