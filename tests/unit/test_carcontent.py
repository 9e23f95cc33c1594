"""CAR files of any kind as something to show: what they hold, and what hostile or changed ones do."""

import hashlib
import io
import os
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from cyberkv.cybergraph import carindex
from cyberkv.cybergraph.car import write_car
from cyberkv.cybergraph.cid import Buffer, Cid
from cyberkv.cybergraph.errors import (
    BlockNotFound,
    Corrupt,
    CyberKVError,
    DigestMismatch,
    LimitExceeded,
    MalformedCar,
    NotFound,
    TruncatedCar,
)
from cyberkv.cybergraph.foreign import AnyCid, ForeignCid, any_cid, parse_cid
from cyberkv.cybergraph.gateway import Content, Published, Several
from cyberkv.cybergraph.gateway import content as contents_of
from cyberkv.cybergraph.gateway.carcontent import CarContent
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.ipld import write_value
from cyberkv.cybergraph.limits import MAX_LEAF_BYTES
from cyberkv.cybergraph.store import MemoryStore
from cyberkv.cybergraph.varint import write_varint
from tests.unit.test_ipld import pb
from tests.wire.synthetic import contents, conversation

Write = Callable[..., Path]


def named(data: bytes, codec: int, head: bytes = b"\x12\x20") -> AnyCid:
    return any_cid(b"\x01" + write_varint(codec) + head + hashlib.sha256(data).digest())


def car(roots: list[AnyCid], blocks: Iterable[tuple[bytes, bytes]]) -> bytes:
    header = write_value("dag-cbor", {"roots": roots, "version": 1})  # type: ignore[dict-item]
    return (
        write_varint(len(header))
        + header
        + b"".join(write_varint(len(cid) + len(data)) + cid + data for cid, data in blocks)
    )


def version_2(inner: bytes, padding: bytes = b"") -> bytes:
    """The same blocks as CARv2, without an index."""
    at = 51 + len(padding)
    numbers = (at, len(inner), at + len(inner))
    header = bytes(16) + b"".join(number.to_bytes(8, "little") for number in numbers)
    return bytes.fromhex("0aa16776657273696f6e02") + header + padding + inner


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(data: bytes, name: str = "some.car") -> Path:
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    return write


# A graph of three codecs: dag-pb of version 0 -> dag-json -> dag-cbor -> raw.
LEAF = b"leaf" * 100
LEAF_CID = named(LEAF, 0x55)
CBOR = write_value("dag-cbor", {"leaf": LEAF_CID, "half": 0.5})
CBOR_CID = named(CBOR, 0x71)
JSON = write_value("dag-json", {"node": CBOR_CID, "again": LEAF_CID})
JSON_CID = named(JSON, 0x0129)
PB = pb((JSON_CID, "json"), (LEAF_CID, "leaf"))
PB_CID = ForeignCid(b"\x12\x20" + hashlib.sha256(PB).digest())
FOREIGN: list[tuple[AnyCid, bytes]] = [(PB_CID, PB), (JSON_CID, JSON), (LEAF_CID, LEAF), (CBOR_CID, CBOR)]


def walk(content: Content, root: AnyCid, *, dups: bool = False) -> list[tuple[AnyCid, bytes]]:
    return [(cid, bytes(data)) for run in content.graph(root, dups=dups) for cid, data in run]


def test_a_published_conversation_is_the_same_from_a_file_as_from_a_home(write: Write, index: Index) -> None:
    store, root = conversation(blocks=40)
    blocks = contents(store, root)
    out = io.BytesIO()
    write_car(out, [root], reversed(blocks.items()))
    index.publish(root, blocks)
    home = Published(store, index)
    with CarContent(write(out.getvalue())) as content:
        assert (content.roots(), len(content.index)) == ([root], len(blocks))
        assert (content.index.bad_end, content.index.left_out) == (None, 0)
        for cid, data in blocks.items():
            assert content.get(cid) == data
            assert content.size_bytes(cid) == len(data)
        for dups in (False, True):
            from_home = [(cid, bytes(data)) for run in home.graph(root, dups=dups) for cid, data in run]
            assert walk(content, root, dups=dups) == from_home
        first, *rest = content.graph(root, dups=False)
        assert [cid for cid, _ in first] == [root]
        assert sum(map(len, rest)) == len(blocks) - 1


def test_a_graph_goes_through_every_codec_that_has_links(write: Write) -> None:
    with CarContent(write(car([PB_CID], FOREIGN[::-1]))) as content:
        assert content.roots() == [PB_CID]
        assert walk(content, PB_CID) == [(PB_CID, PB), (JSON_CID, JSON), (LEAF_CID, LEAF), (CBOR_CID, CBOR)]
        order = [cid for cid, _ in walk(content, PB_CID, dups=True)]
        assert order == [PB_CID, JSON_CID, LEAF_CID, CBOR_CID, LEAF_CID, LEAF_CID]


def test_the_same_bytes_are_found_under_version_0_and_1(write: Write) -> None:
    with CarContent(write(car([PB_CID], FOREIGN))) as content:
        newer = ForeignCid(b"\x01\x70" + PB_CID)
        assert content.get(newer) == content.get(PB_CID) == PB
        assert walk(content, newer)[1:] == walk(content, PB_CID)[1:]
        assert content.get(any_cid(b"\x01\x55" + PB_CID)) == PB  # as raw bytes, too


def test_what_a_file_lacks(write: Write) -> None:
    absent = named(b"absent", 0x55)
    node = write_value("dag-cbor", [absent, LEAF_CID])
    cid = named(node, 0x71)
    with CarContent(write(car([cid, absent], [(cid, node), (LEAF_CID, LEAF)]))) as content:
        assert content.roots() == [cid]
        assert content.size_bytes(absent) is None
        assert walk(content, cid) == [(cid, node), (LEAF_CID, LEAF)]
        for ask in (content.get, lambda cid: walk(content, cid)):
            with pytest.raises(BlockNotFound):
                ask(absent)


def test_identity_blocks_are_not_sent_in_a_stream(write: Write) -> None:
    held = ForeignCid(b"\x01\x55\x00\x04held")
    node = write_value("dag-cbor", [held, LEAF_CID])
    cid = named(node, 0x71)
    with CarContent(write(car([cid], [(cid, node), (held, b"held"), (LEAF_CID, LEAF)]))) as content:
        assert content.get(held) == b"held"
        assert walk(content, cid) == [(cid, node), (LEAF_CID, LEAF)]


def test_blocks_that_cannot_be_checked_or_are_too_large_are_left_out(write: Write) -> None:
    keccak = b"\x01\x55\x1b\x20" + bytes(32)
    large = bytes(MAX_LEAF_BYTES + 1)
    fits = large[1:]
    blocks = [(keccak, b"x"), (named(large, 0x55), large), (named(fits, 0x55), fits), (LEAF_CID, LEAF)]
    with CarContent(write(car([LEAF_CID], blocks))) as content:
        assert (len(content.index), content.index.left_out, content.index.bad_end) == (2, 2, None)
        assert content.size_bytes(any_cid(keccak)) is None
        assert content.size_bytes(named(large, 0x55)) is None
        assert content.get(named(fits, 0x55)) == fits
        assert content.get(LEAF_CID) == LEAF


def test_a_block_that_comes_twice_is_one(write: Write) -> None:
    wrong = b"l" + LEAF[1:-1] + b"X"
    with CarContent(write(car([LEAF_CID], [(LEAF_CID, LEAF)] * 3 + [(LEAF_CID, wrong)]))) as content:
        assert content.get(LEAF_CID) == LEAF


def test_version_2_with_its_header_and_an_index_behind(write: Write) -> None:
    inner = car([PB_CID], FOREIGN)
    for padding in (b"", bytes(100)):
        at = 51 + len(padding)
        whole = version_2(inner, padding) + b"\x81\x08 index that is not read"
        with CarContent(write(whole)) as content:
            assert (len(content.index), content.index.bad_end) == (len(FOREIGN), None)
            assert dict(walk(content, PB_CID)) == dict(FOREIGN)
        for bad in (
            whole[:30], whole.replace(at.to_bytes(8, "little"), b"\xff" * 8, 1),
            whole.replace(at.to_bytes(8, "little"), (3).to_bytes(8, "little"), 1),
        ):  # fmt: skip
            with pytest.raises(MalformedCar):
                CarContent(write(bad))
        with CarContent(write(whole[: at + len(inner) - 1])) as content:
            assert isinstance(content.index.bad_end, TruncatedCar)
            assert [content.get(cid) for cid, _ in FOREIGN[:-1]] == [data for _, data in FOREIGN[:-1]]
            assert content.size_bytes(CBOR_CID) is None


def test_a_file_that_is_cut_gives_what_stands_before(write: Write) -> None:
    whole = car([PB_CID], FOREIGN)
    ends, at = [], len(car([PB_CID], []))
    for cid, data in FOREIGN:
        at += len(car([], [(cid, data)])) - len(car([], []))
        ends.append(at)
    for cut in range(len(whole)):
        path = write(whole[:cut])
        if cut < len(car([PB_CID], [])):
            with pytest.raises(CyberKVError):
                CarContent(path)
            continue
        with CarContent(path) as content:
            held = sum(end <= cut for end in ends)
            assert len(content.index) == held
            assert (content.index.bad_end is None) == (cut in (len(car([PB_CID], [])), *ends))
            assert dict(FOREIGN[:held]) == {cid: content.get(cid) for cid, _ in FOREIGN[:held]}


@pytest.mark.parametrize(
    "tail",
    [b"\0", b"\x80\0", b"\x80" * 9, b"\xff" * 8 + b"\x7f", b"\x05short", b"\x25\x01\x55\x12\x20" + bytes(33) + b"\0\0",
     b"\x24\x09\x55\x12\x20" + bytes(32), b"\x30\x01\x55\x12\x81\x01" + bytes(42), b"\x22\x12\x20" + bytes(31)],
)  # fmt: skip
def test_hostile_sections_end_the_file_and_nothing_else(write: Write, tail: bytes) -> None:
    with CarContent(write(car([LEAF_CID], [(LEAF_CID, LEAF)]) + tail)) as content:
        if content.index.bad_end is None:
            assert tail.startswith(b"\x25")  # a whole section: a CID and one byte; the control of the others
        else:
            assert isinstance(content.index.bad_end, MalformedCar | TruncatedCar)
        assert content.get(LEAF_CID) == LEAF


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"\x80", b"\xff" * 20, b"\xff\xff\xff\x7f", b"\x03\xa1", b"\x01\xa0", b"<!DOCTYPE html>" * 10,
     car([], [])[:-1] + b"\x02", b"\x13" + write_value("dag-cbor", {"roots": [1], "version": 1}),
     b"\x11" + write_value("dag-cbor", {"roots": 5, "version": 1}), b"\x80\x80\x08" + bytes(1 << 17)],
)  # fmt: skip
def test_what_is_no_car(write: Write, data: bytes) -> None:
    with pytest.raises((MalformedCar, TruncatedCar, LimitExceeded)):
        CarContent(write(data))


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "none.car", tmp_path / "pipe"):
        with pytest.raises(NotFound, match="cannot read"):
            CarContent(path)


# A file that changes while it is served.


def test_changed_bytes_are_never_given(write: Write) -> None:
    whole = car([PB_CID], FOREIGN)
    path = write(whole)
    with CarContent(path) as content:
        at = whole.index(LEAF)
        path.write_bytes(whole[:at] + b"L" + whole[at + 1 :])
        with pytest.raises(DigestMismatch):
            content.get(LEAF_CID)
        with pytest.raises(DigestMismatch):
            walk(content, PB_CID)
        assert content.get(PB_CID) == PB
        path.write_bytes(whole)
        assert content.get(LEAF_CID) == LEAF


def test_a_file_cut_short_or_replaced_in_place_gives_errors(write: Write) -> None:
    whole = car([PB_CID], FOREIGN)
    path = write(whole)
    with CarContent(path) as content:
        os.truncate(path, len(whole) - 1)
        with pytest.raises(TruncatedCar):
            content.get(CBOR_CID)
        os.truncate(path, 100)
        with pytest.raises(Corrupt):
            content.size_bytes(CBOR_CID)
        path.write_bytes(car([LEAF_CID], [(LEAF_CID, LEAF)] * 3))
        for cid, _ in FOREIGN:
            with pytest.raises(Corrupt):
                content.get(cid)


def test_a_file_replaced_by_another_of_its_name_stays_what_it_was(write: Write) -> None:
    path = write(car([PB_CID], FOREIGN))
    with CarContent(path) as content:
        write(b"something else", "new").replace(path)
        assert walk(content, PB_CID) == [(PB_CID, PB), (JSON_CID, JSON), (LEAF_CID, LEAF), (CBOR_CID, CBOR)]
    with pytest.raises(Corrupt, match="closed"):
        content.get(PB_CID)


# Bounds.


def test_memory_for_many_tiny_blocks_is_bounded(write: Write) -> None:
    count = 40_000
    blocks = [(parse_cid(str(named(bytes([n & 255, n >> 8]), 0x55))), bytes([n & 255, n >> 8])) for n in range(count)]
    path = write(car([blocks[0][0]], blocks))
    told: list[tuple[int, int]] = []
    tracemalloc.start()
    try:
        content = CarContent(path, lambda done, total: told.append((done, total)))
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    with content:
        assert kept < 40 * count
        assert peak < 150 * count
        assert [content.get(cid) for cid, _ in blocks[::997]] == [data for _, data in blocks[::997]]
    assert told == sorted(told)
    assert {total for _, total in told} == {path.stat().st_size}


def test_more_blocks_than_the_bound_are_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(car([PB_CID], FOREIGN))
    monkeypatch.setattr(carindex, "MAX_CAR_SECTIONS", len(FOREIGN))
    CarContent(path).close()
    monkeypatch.setattr(carindex, "MAX_CAR_SECTIONS", len(FOREIGN) - 1)
    with pytest.raises(LimitExceeded, match="over 3 blocks"):
        CarContent(path)


def test_a_few_nodes_of_endless_repetitions_come_to_an_end(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, cid = [(LEAF_CID, LEAF)], LEAF_CID
    for _ in range(40):  # 2^40 ways from the last to the first
        node = write_value("dag-cbor", [cid, cid])
        cid = named(node, 0x71)
        blocks.append((cid, node))
    monkeypatch.setattr(contents_of, "MAX_CAR_SECTIONS", 5000)
    with CarContent(write(car([cid], blocks))) as content:
        assert len(walk(content, cid)) == len(blocks)
        with pytest.raises(LimitExceeded, match="5000"):
            walk(content, cid, dups=True)
    store = MemoryStore()
    store.put_many([(each, data) for each, data in blocks if isinstance(each, Cid)])
    with Index(tmp_path / "index") as index:
        assert isinstance(cid, Cid)
        index.publish(cid, [each for each, _ in blocks if isinstance(each, Cid)])
        published = Published(store, index)
        assert len(walk(published, cid)) == len(blocks)
        with pytest.raises(LimitExceeded, match="5000"):
            walk(published, cid, dups=True)


def test_leaves_lie_in_the_memory_that_is_given(write: Write) -> None:
    given: list[int] = []

    def room(size_bytes: int) -> memoryview:
        given.append(size_bytes)
        return memoryview(bytearray(size_bytes))

    with CarContent(write(car([PB_CID], FOREIGN))) as content:
        runs = list(content.graph(PB_CID, dups=False, room=room))
        assert given == [len(LEAF)]
        assert all(isinstance(data, bytes | memoryview) for run in runs for _, data in run)


def test_the_home_comes_before_a_file_and_a_file_adds_to_it(write: Write, index: Index) -> None:
    store, root = conversation(blocks=2)
    blocks = contents(store, root)
    index.publish(root, blocks)
    leaf = list(blocks)[-1]
    other: dict[AnyCid, Buffer] = {leaf: b"another block of this name" + bytes(99), **dict(FOREIGN)}
    with CarContent(write(car([PB_CID], ((cid, bytes(data)) for cid, data in other.items())))) as content:
        both = Several([Published(store, index), content])
        assert both.roots() == [root, PB_CID]
        assert both.get(leaf) == blocks[leaf]
        assert both.get(LEAF_CID) == LEAF
        assert both.size_bytes(Cid.of(b"absent", "raw", "blake3")) is None
        with pytest.raises(DigestMismatch):
            content.get(leaf)
