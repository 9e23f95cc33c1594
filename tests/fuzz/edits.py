"""Bytes that were right once: how a good input is spoilt, in ways that reach past the first check."""

from collections.abc import Sequence

from hypothesis import strategies as st

_HEADS = (
    b"\x00", b"\x17", b"\x18\x18", b"\x1b" + b"\xff" * 8, b"\x3b" + b"\xff" * 8, b"\x40", b"\x5b\x7f" + b"\xff" * 7,
    b"\x5f", b"\x60", b"\x7f", b"\x80", b"\x81", b"\x9b\x00" + b"\xff" * 7, b"\x9f", b"\xa0", b"\xbf", b"\xc0",
    b"\xd8\x2a", b"\xd8\x2a\x58\x25\x00", b"\xf4", b"\xf6", b"\xf7", b"\xf9\x7e\x00", b"\xfb" + bytes(8), b"\xff",
    b"\x80\x80\x80\x80\x08", b"\xff\xff\xff\xff\x0f",
)  # fmt: skip
"""Beginnings of CBOR items and of CAR sections, among them those that promise more than any input holds."""


@st.composite
def spoilt(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """Draw one of the seeds with a few changes; now and then none, or bytes that were never right."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=64))
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        size = draw(st.integers(0, 9))
        match draw(st.sampled_from(["flip", "cut", "put", "over", "again", "graft", "end"])):
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at : at + size]
            case "put":
                data[at:at] = draw(st.sampled_from(_HEADS) | st.binary(max_size=9))
            case "over":
                new = draw(st.sampled_from(_HEADS) | st.binary(max_size=9))
                data[at : at + len(new)] = new
            case "again":
                data[at:at] = data[at : at + size] * draw(st.integers(1, 40))
            case "graft":
                other = draw(st.sampled_from(seeds))
                start = draw(st.integers(0, len(other)))
                data[at:] = other[start:]
            case "end":
                del data[at:]
    return bytes(data)
