import os
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from cyberkv.cybergraph import carindex, limits
from cyberkv.cybergraph.car import car_header, car_section
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import (
    BadReference,
    BlockNotFound,
    Corrupt,
    LimitExceeded,
    MalformedCar,
    NotFound,
    PeerMisbehaved,
    PeerUnreachable,
    TruncatedCar,
)
from cyberkv.cybergraph.foreign import any_cid
from cyberkv.cybergraph.peers import CarFilePeer, HttpPeer, Patience, Peer, open_peer
from cyberkv.cybergraph.peers.kubo import RpcAddress
from cyberkv.cybergraph.peers.line import SLACK_BYTES, Meter
from cyberkv.cybergraph.peers.url import GatewayUrl
from tests.contracts.peer import ABSENT, PeerContract
from tests.unit.test_carcontent import car, version_2
from tests.wire.synthetic import contents, conversation


def sections(blocks: Mapping[Cid, bytes], root: Cid) -> list[bytes]:
    return [car_header([root]), *(car_section(cid, data) for cid, data in blocks.items())]


class TestCarFile(PeerContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "some.car"

    def offer(self, blocks: Mapping[Cid, bytes], root: Cid) -> Peer:
        self.path.write_bytes(b"".join(sections(blocks, root)))
        return CarFilePeer(self.path)

    def test_what_stands_before_a_cut_is_usable(self, blocks: dict[Cid, bytes], root: Cid) -> None:
        pieces = sections(blocks, root)
        whole = b"".join(pieces)
        ends = [sum(map(len, pieces[: count + 1])) for count in range(len(pieces))]
        for size in sorted({cut for end in ends for cut in (end - 1, end, end + 1, end + 20)}):
            self.path.write_bytes(whole[:size])
            if size < ends[0]:
                with pytest.raises(TruncatedCar):
                    CarFilePeer(self.path)
                continue
            count = sum(end <= size for end in ends) - 1
            got = []
            with CarFilePeer(self.path) as peer:
                if count == len(blocks):
                    assert dict(peer.get_many(list(blocks))) == blocks
                    continue
                # A cut between two blocks leaves a file that looks whole, unless it lacks its own root.
                expected = BlockNotFound if size in ends[1:] else TruncatedCar
                with pytest.raises(expected):
                    got.extend(peer.get_many(list(blocks)))
            assert dict(got) == dict(list(blocks.items())[:count])

    @pytest.mark.parametrize(
        "junk",
        [b"\x00", b"\x05abcde", b"\x80\x80\x80\x80\x01", b"\x25\x01\x55\x12\x20" + bytes(33),
         b"[Gateway Error: " + b"x" * 99,
         b"\xff\xff\xff\x7f" + b"\x01\x55\x1e\x20" + bytes(32)],
    )  # fmt: skip
    def test_what_stands_before_junk_is_usable(self, blocks: dict[Cid, bytes], root: Cid, junk: bytes) -> None:
        self.path.write_bytes(b"".join(sections(blocks, root)) + junk)
        with CarFilePeer(self.path) as peer:
            if junk[:5] != b"\x25\x01\x55\x12\x20":
                with pytest.raises((MalformedCar, TruncatedCar)):
                    list(peer.get_many([ABSENT]))
            assert dict(peer.get_many(list(blocks))) == blocks

    def test_a_file_that_shrinks_while_open_is_cut(self, blocks: dict[Cid, bytes], root: Cid) -> None:
        with self.offer(blocks, root) as peer:
            self.path.write_bytes(self.path.read_bytes()[:-1])
            with pytest.raises(TruncatedCar):
                list(peer.get_many(list(blocks)))

    def test_the_first_of_two_equal_cids_counts(self, blocks: dict[Cid, bytes], root: Cid) -> None:
        victim = list(blocks)[-1]
        self.path.write_bytes(b"".join(sections(blocks, root)) + car_section(victim, b"other bytes"))
        with CarFilePeer(self.path) as peer:
            assert dict(peer.get_many([victim])) == {victim: blocks[victim]}

    def test_blocks_and_roots_of_other_forms_are_passed_over(self, blocks: dict[Cid, bytes], root: Cid) -> None:
        foreign = list(zip([b"\x12\x20" + bytes(32), b"\x01\x70\x1b\x20" + bytes(32)], [b"pb", b"keccak"], strict=True))
        mixed = [each for own in blocks.items() for each in (*foreign, own)]
        self.path.write_bytes(car([any_cid(foreign[0][0]), root], mixed))
        with CarFilePeer(self.path) as peer:
            assert (peer.roots, peer.is_whole) == ((root,), True)
            assert dict(peer.get_many(list(blocks))) == blocks
            with pytest.raises(BlockNotFound):
                list(peer.get_many([ABSENT]))
        self.path.write_bytes(car([root, ABSENT], mixed))
        with CarFilePeer(self.path) as peer:
            assert not peer.is_whole

    def test_a_file_of_version_2_and_what_stands_before_its_cut(self, blocks: dict[Cid, bytes], root: Cid) -> None:
        whole = version_2(b"".join(sections(blocks, root)))
        self.path.write_bytes(whole + b"an index that is not read")
        with CarFilePeer(self.path) as peer:
            assert (peer.roots, peer.is_whole) == ((root,), True)
            assert dict(peer.get_many(list(blocks))) == blocks
        last = list(blocks)[-1]
        section_bytes = len(car_section(last, blocks[last]))
        for cut in (1, section_bytes - 1, section_bytes):  # where it ends between two blocks, the header tells
            self.path.write_bytes(whole[:-cut])
            got = []
            with CarFilePeer(self.path) as peer:
                assert not peer.is_whole
                with pytest.raises(TruncatedCar):
                    got.extend(peer.get_many(list(blocks)))
            assert dict(got) == {cid: data for cid, data in blocks.items() if cid != last}

    def test_one_block_under_two_codecs(self, blocks: dict[Cid, bytes], root: Cid) -> None:
        raw = Cid(bytes.fromhex("0155") + root[2:])
        with self.offer(blocks, root) as peer:
            assert dict(peer.get_many([raw, *blocks])) == {raw: blocks[root], **blocks}

    def test_blocks_whose_hashes_are_cut_to_the_same_number_are_told_apart(
        self, blocks: dict[Cid, bytes], root: Cid, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(carindex, "_HASH_MASK", 1)
        with self.offer(blocks, root) as peer:
            assert dict(peer.get_many(list(blocks))) == blocks

    def test_a_node_larger_than_any_is_not_held(self) -> None:
        large = b"\x45" * (limits.MAX_NODE_BYTES + 1)
        as_node, as_leaf = (Cid.of(large, codec, "blake3") for codec in ("dag-cbor", "raw"))
        self.path.write_bytes(car([], [(as_node, large)]))
        with CarFilePeer(self.path) as peer:
            with pytest.raises(BlockNotFound):
                list(peer.get_many([as_node]))
            assert dict(peer.get_many([as_leaf])) == {as_leaf: large}

    def test_a_size_that_is_changed_while_the_file_is_open_takes_no_memory(
        self, blocks: dict[Cid, bytes], root: Cid
    ) -> None:
        with self.offer(blocks, root) as peer:
            head = b"".join(sections(blocks, root)[:1])
            self.path.write_bytes(head + b"\xff\xff\xff\xff\xff\xff\x7f" + root)
            with pytest.raises(Corrupt):
                list(peer.get_many([root]))

    def test_too_many_blocks_are_refused(
        self, blocks: dict[Cid, bytes], root: Cid, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert len(blocks) < limits.MAX_CAR_SECTIONS
        monkeypatch.setattr(carindex, "MAX_CAR_SECTIONS", len(blocks) - 1)
        with pytest.raises(LimitExceeded):
            self.offer(blocks, root)
        monkeypatch.setattr(carindex, "MAX_CAR_SECTIONS", len(blocks))
        self.offer(blocks, root).close()


def test_a_file_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.car"
    os.mkfifo(pipe)
    for path in (tmp_path / "none.car", tmp_path, pipe, Path("/proc/self/mem")):
        with pytest.raises(NotFound, match=f"cannot read {path}"):
            CarFilePeer(path)


@pytest.mark.parametrize("data", [b"<html>", b"", b"\x00" * 50])
def test_a_file_that_is_no_car_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "page.car"
    path.write_bytes(data)
    with pytest.raises((MalformedCar, TruncatedCar)):
        CarFilePeer(path)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://127.0.0.1:8480", "http://127.0.0.1:8480"),
        ("http://127.0.0.1:8480/", "http://127.0.0.1:8480"),
        (f"http://127.0.0.1:8480/ipfs/{ABSENT}", "http://127.0.0.1:8480"),
        ("https://example.org/ipfs/", "https://example.org"),
        ("http://[::1]:80/ipfs/x", "http://[::1]:80"),
    ],
)
def test_gateway_urls(text: str, shown: str) -> None:
    assert str(GatewayUrl.parse(text)) == shown


@pytest.mark.parametrize(
    "text",
    ["ftp://a", "http://", "http://a/b", "http://a/ipfs/x/y", "http://a?b", "http://a#b", "http://a:port",
     "http://a:99999",
     "http://user:secret@a", "file:///etc/passwd", "http://[::1", "http:///ipfs/x"],
)  # fmt: skip
def test_other_urls_are_refused(text: str) -> None:
    with pytest.raises(BadReference) as caught:
        GatewayUrl.parse(text)
    assert "secret" not in str(caught.value) + str(caught.value.data)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://127.0.0.1:5001/", "http://127.0.0.1:5001"),
        ("https://node.example/api/v0/", "https://node.example"),
        ("/ip6/::1/tcp/5001", "http://[::1]:5001"),
    ],
)
def test_addresses_of_nodes(text: str, shown: str) -> None:
    assert str(RpcAddress.parse(text)) == shown


@pytest.mark.parametrize(
    "text",
    ["ftp://a", "http://", "http://a/api", "http://a/api/v0?b", "http://a/ipfs/x", "http://a:port", "127.0.0.1:5001",
     "http://user:secret@a:5001", "/ip4/127.0.0.1/udp/5001", "/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/tcp/5001/ws"],
)  # fmt: skip
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(BadReference) as caught:
        RpcAddress.parse(text)
    assert "secret" not in str(caught.value) + str(caught.value.data)


def test_open_peer_tells_urls_from_files(tmp_path: Path) -> None:
    path = tmp_path / "a.car"
    path.write_bytes(b"".join(sections(*conversation_sections())))
    for text in ("[::1]:80", "example.org:8480", "http://127.0.0.1:1"):
        with open_peer(text) as gateway:
            assert gateway.name == f"http://{text.removeprefix('http://')}"
    with open_peer(str(path)) as car, open_peer("http://127.0.0.1:1") as gateway:
        assert (type(car), type(gateway)) == (CarFilePeer, HttpPeer)
        assert (car.name, gateway.name) == (str(path), "http://127.0.0.1:1")


def conversation_sections() -> tuple[dict[Cid, bytes], Cid]:
    store, root = conversation(blocks=1)
    return contents(store, root), root


class TestMeter:
    """Bounds on one block, against a clock that a test moves."""

    def meter(self) -> Meter:
        self.now = 0.0
        return Meter("peer", Patience(read_s=30, block_s=60), lambda: self.now)

    def read(self, meter: Meter, count: int) -> int:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(bytes(count))
            return meter.receive(ours, memoryview(bytearray(count)))

    def test_a_trickle_runs_into_the_deadline(self) -> None:
        meter = self.meter()
        meter.renew(1 << 20)
        for self.now in range(0, 60, 20):
            assert self.read(meter, 1) == 1
        self.now = 60.0
        with pytest.raises(PeerUnreachable):
            self.read(meter, 1)
        meter.renew(1)
        assert self.read(meter, 1) == 1

    def test_more_bytes_than_allowed_are_not_read(self) -> None:
        meter = self.meter()
        meter.renew(100)
        for left in range(100 + SLACK_BYTES - 1, 0, -1000):
            assert self.read(meter, min(left, 1000)) == min(left, 1000)
        assert self.read(meter, 50) == 1
        with pytest.raises(PeerMisbehaved):
            self.read(meter, 1)
