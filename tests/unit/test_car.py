"""CAR files at their bounds, and the plain layout written out by hand."""

import io
import tracemalloc
from collections.abc import Iterator

import pytest

from cyberkv.cybergraph.car import GATHER_BUFFERS, GATHER_BYTES, car_header, read_car, write_car
from cyberkv.cybergraph.cid import Buffer, Cid, Codec
from cyberkv.cybergraph.errors import DigestMismatch, LimitExceeded, TruncatedCar
from cyberkv.cybergraph.limits import MAX_LEAF_BYTES, MAX_NODE_BYTES
from fixtures.golden import CAR_BLOCKS, CONVERSATION

CID = Cid.of(b"x", "raw", "blake3")


def test_layout() -> None:
    out = io.BytesIO()
    assert write_car(out, [CID], [(CID, b"x")]) == 1 + 58 + 1 + 36 + 1
    header = bytes.fromhex("3a a2 65726f6f7473 81 d82a582500") + CID + bytes.fromhex("6776657273696f6e 01")
    assert out.getvalue() == header + b"\x25" + CID + b"x"


def test_no_blocks_and_no_roots_are_a_file() -> None:
    reader = read_car(io.BytesIO(car_header([])))
    assert reader.roots == ()
    assert list(reader) == []


def test_the_writer_refuses_bytes_that_are_not_their_cid() -> None:
    out = io.BytesIO()
    with pytest.raises(DigestMismatch):
        write_car(out, [CID], [(CID, b"x"), (CID, b"y")])
    assert list(read_car(io.BytesIO(out.getvalue()))) == [(CID, b"x")]


@pytest.mark.parametrize(("codec", "most_bytes"), [("raw", MAX_LEAF_BYTES), ("dag-cbor", MAX_NODE_BYTES)])
def test_block_size_is_bounded_in_both_directions(codec: Codec, most_bytes: int) -> None:
    for size_bytes in (most_bytes, most_bytes + 1):
        data = bytes(size_bytes)
        cid = Cid.of(data, codec, "blake3")
        out = io.BytesIO()
        if size_bytes == most_bytes:
            write_car(out, [cid], [(cid, data)])
            assert list(read_car(io.BytesIO(out.getvalue()))) == [(cid, data)]
        else:
            with pytest.raises(LimitExceeded):
                write_car(out, [cid], [(cid, data)])


def test_header_size_is_bounded_in_both_directions() -> None:
    assert len(read_car(io.BytesIO(car_header([CID] * 1597))).roots) == 1597
    with pytest.raises(LimitExceeded):
        car_header([CID] * 1598)


def test_a_cut_between_blocks_looks_whole_and_says_so_nowhere() -> None:
    out = io.BytesIO()
    write_car(out, [CONVERSATION.cid()], CAR_BLOCKS[:3])
    assert list(read_car(io.BytesIO(out.getvalue()))) == CAR_BLOCKS[:3]


def test_after_a_cut_the_blocks_before_it_are_kept() -> None:
    out = io.BytesIO()
    size_bytes = write_car(out, [CONVERSATION.cid()], CAR_BLOCKS)
    got = []
    with pytest.raises(TruncatedCar) as caught:
        got += read_car(io.BytesIO(out.getvalue()[:-1]))  # keeps what came before the error
    assert caught.value.data["offset"] == size_bytes - 1
    assert caught.value.hint
    assert got == CAR_BLOCKS[:-1]


def test_unchecked_blocks_come_as_they_are_in_the_memory_of_the_caller() -> None:
    out = io.BytesIO()
    write_car(out, [CONVERSATION.cid()], CAR_BLOCKS)
    taken: list[memoryview] = []

    def room(size_bytes: int) -> memoryview:
        taken.append(memoryview(bytearray(size_bytes)))
        return taken[-1]

    got = list(read_car(io.BytesIO(out.getvalue())).unchecked(room))
    assert [(cid, bytes(data)) for cid, data in got] == CAR_BLOCKS
    leaves = [data for cid, data in got if cid.codec == "raw"]
    assert leaves
    assert all(data is mine for data, mine in zip(leaves, taken, strict=True))
    wrong = out.getvalue()[:-1] + bytes([out.getvalue()[-1] ^ 1])
    assert len(list(read_car(io.BytesIO(wrong)).unchecked(room))) == len(CAR_BLOCKS)
    with pytest.raises(DigestMismatch):
        list(read_car(io.BytesIO(wrong)))
    with pytest.raises(TruncatedCar):
        list(read_car(io.BytesIO(wrong[:-1])).unchecked(room))


def test_gather_lists_are_bounded() -> None:
    class Lists:
        def __init__(self) -> None:
            self.counts: list[int] = []
            self.sizes_bytes: list[int] = []

        def writelines(self, lines: list[Buffer], /) -> None:
            self.counts.append(len(lines))
            self.sizes_bytes.append(sum(map(len, lines)))

    for block_bytes, blocks in ((1, 5000), (MAX_LEAF_BYTES, 5)):
        data = bytes(block_bytes)
        cid = Cid.of(data, "raw", "blake3")
        lists = Lists()
        assert write_car(lists, [cid], [(cid, data)] * blocks) == sum(lists.sizes_bytes)
        assert max(lists.counts) <= GATHER_BUFFERS
        assert max(lists.sizes_bytes) < GATHER_BYTES + MAX_LEAF_BYTES + 100
        assert len(lists.counts) > 4


def test_memory_holds_one_block_at_a_time() -> None:
    data = bytes(1 << 20)
    cid = Cid.of(data, "raw", "blake3")
    one = io.BytesIO()
    write_car(one, [cid], [(cid, data)])
    header = car_header([cid])
    section = one.getvalue()[len(header) :]

    class Endless(io.RawIOBase):
        """The same section 64 times, never held as a whole."""

        def __init__(self) -> None:
            self.parts: Iterator[bytes] = iter([header, *[section] * 64])
            self.part = b""

        def read(self, size: int = -1) -> bytes:
            if not self.part:
                self.part = next(self.parts, b"")
            given, self.part = self.part[:size], self.part[size:]
            return given

    tracemalloc.start()
    try:
        count = sum(1 for _ in read_car(Endless()))  # type: ignore[arg-type]
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 64
    assert peak_bytes < 8 * len(data)
