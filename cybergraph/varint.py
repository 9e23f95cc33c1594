r"""Unsigned varints: how CIDs, CAR files and protobuf write numbers, 7 bits a byte and the low ones first.

>>> write_varint(300)
b'\xac\x02'
>>> read_varint(b"\xac\x02rest")
(300, 2)
"""

from typing import Final

MOST_BYTES: Final = 9
"""Longest number of CIDs and CAR files: 63 bits."""


def write_varint(value: int) -> bytes:
    """Write a number, not below zero, in its shortest form."""
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    data.append(value)
    return bytes(data)


def read_varint(data: bytes, at: int = 0, most_bytes: int = MOST_BYTES, *, shortest: bool = True) -> tuple[int, int]:
    """Read the number at `at`: give it and the offset after it.

    Raises `EOFError` where the data end inside the number, and `ValueError` for one of more than `most_bytes` and, if
    it has to be in its `shortest` form, for one that is not.
    """
    value = 0
    for shift, byte in enumerate(data[at : at + most_bytes]):
        value |= (byte & 127) << 7 * shift
        if byte < 128:
            if shortest and byte == 0 and shift:
                raise ValueError("a number that is not in its shortest form")
            return value, at + shift + 1
    if len(data) - at < most_bytes:
        raise EOFError("a number that is cut")
    raise ValueError(f"a number of more than {most_bytes} bytes")
