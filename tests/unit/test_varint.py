"""Varints, with the `multiformats` package as the second opinion."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multiformats import varint as oracle

from cyberkv.cybergraph.varint import MOST_BYTES, read_varint, write_varint


@given(st.integers(0, (1 << 63) - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_numbers_come_back_wherever_they_stand(value: int, before: bytes, after: bytes) -> None:
    data = write_varint(value)
    assert data == oracle.encode(value)
    assert read_varint(before + data + after, len(before)) == (value, len(before) + len(data))


@given(st.binary(max_size=MOST_BYTES + 2))
def test_what_the_other_reader_refuses_is_refused(data: bytes) -> None:
    try:
        value, count, _ = oracle.decode_raw(data)
    except ValueError:
        with pytest.raises((ValueError, EOFError)):
            read_varint(data)
    else:
        assert read_varint(data) == (value, count)


def test_cut_long_and_padded_numbers_are_told_apart() -> None:
    for cut in (b"", b"\x80", b"\xff" * (MOST_BYTES - 1)):
        with pytest.raises(EOFError):
            read_varint(cut)
    with pytest.raises(ValueError, match="more than 9 bytes"):
        read_varint(b"\xff" * MOST_BYTES)
    with pytest.raises(ValueError, match="shortest"):
        read_varint(b"\x81\x00")
    assert read_varint(b"\x81\x00", shortest=False) == (1, 2)
    assert read_varint(b"\xff" * 9 + b"\x01", most_bytes=10) == ((1 << 64) - 1, 10)
    assert read_varint(b"\x00") == (0, 1)
