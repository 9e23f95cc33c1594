"""CAR streams: any blocks come back, any cut is noticed or falls between two blocks, damage is refused."""

import io
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyberkv.cybergraph.car import car_header, car_section, read_car, write_car
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import CyberKVError, TruncatedCar
from cyberkv.cybergraph.limits import MAX_CAR_SECTION_BYTES
from tests.laws.strategies import cids

payloads = st.binary(max_size=300)
blocks = st.builds(
    lambda data, codec, hash_name: (Cid.of(data, codec, hash_name), data),
    payloads,
    st.sampled_from(["raw", "dag-cbor"]),
    st.sampled_from(["sha2-256", "blake3"]),
)
files = st.tuples(st.lists(cids(), max_size=4), st.lists(blocks, max_size=6))


def written(roots: list[Cid], content: list[tuple[Cid, bytes]]) -> bytes:
    out = io.BytesIO()
    assert write_car(out, roots, content) == len(out.getvalue())
    return out.getvalue()


class Dribble(io.RawIOBase):
    """A stream that gives a few bytes at a time, as a socket does."""

    def __init__(self, data: bytes, step: int) -> None:
        self.rest = data
        self.step = step

    def read(self, size: int = -1) -> bytes:
        assert 0 <= size <= MAX_CAR_SECTION_BYTES, "the reader asks for no more than one section"
        part, self.rest = self.rest[: min(size, self.step)], self.rest[min(size, self.step) :]
        return part


@given(files, st.integers(1, 50))
def test_what_was_written_is_read(file: tuple[list[Cid], list[tuple[Cid, bytes]]], step: int) -> None:
    data = written(*file)
    streams: list[BinaryIO] = [io.BytesIO(data), Dribble(data, step)]  # type: ignore[list-item]
    for stream in streams:
        reader = read_car(stream)
        assert (list(reader.roots), list(reader)) == file
        assert reader.offset == len(data)
    assert data == car_header(file[0]) + b"".join(car_section(cid, block) for cid, block in file[1])


@given(files, st.data())
def test_a_cut_gives_the_blocks_before_it_and_is_noticed_inside_one(
    file: tuple[list[Cid], list[tuple[Cid, bytes]]], data: st.DataObject
) -> None:
    whole = written(*file)
    ends = [len(written(file[0], file[1][:count])) for count in range(len(file[1]) + 1)]
    at = data.draw(st.integers(0, len(whole)) | st.sampled_from(ends))
    got = []
    if at in ends:  # cannot be seen here: the graph tells what is missing
        got += (reader := read_car(io.BytesIO(whole[:at])))
        assert reader.offset == at
    else:
        with pytest.raises(TruncatedCar) as caught:
            got += read_car(io.BytesIO(whole[:at]))
        assert caught.value.data["offset"] == at
    assert got == file[1][: sum(end <= at for end in ends) - 1] if at >= ends[0] else got == []


@given(files, st.integers(0, 1 << 16), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_changes_only_the_roots(
    file: tuple[list[Cid], list[tuple[Cid, bytes]]], at: int, change: int
) -> None:
    data = bytearray(written(*file))
    at %= len(data)
    data[at] ^= change
    got = []
    try:
        got += (reader := read_car(io.BytesIO(bytes(data))))
    except CyberKVError:
        assert got == file[1][: len(got)]
        return
    assert got == file[1]
    assert at < len(car_header(file[0]))
    assert list(reader.roots) != file[0]


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_by_type(data: bytes) -> None:
    with pytest.raises(CyberKVError):
        list(read_car(io.BytesIO(data)))
