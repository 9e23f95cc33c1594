"""Padding by which the size of a page tells little: at most an eighth is added, and only few sizes occur.

>>> [padme_bytes(size) for size in (9, 100, 1000, 1025, 100_000)]
[10, 104, 1024, 1088, 100352]
"""

from typing import Final

from ..cid import Buffer
from ..errors import AuthFailed

LEAST_BYTES: Final = 1 << 10
_LENGTH_BYTES: Final = 4


def padme_bytes(size_bytes: int) -> int:
    """Give the next size whose binary form ends in zeros: the larger, the more of them."""
    if size_bytes < 2:
        return size_bytes
    exponent = size_bytes.bit_length() - 1
    spare = exponent - exponent.bit_length()
    mask = (1 << spare) - 1
    return (size_bytes + mask) & ~mask


def pad(data: bytes) -> bytes:
    """Put data behind its length and fill up with zeros."""
    framed_bytes = _LENGTH_BYTES + len(data)
    padded_bytes = padme_bytes(max(framed_bytes, LEAST_BYTES))
    return b"".join((len(data).to_bytes(_LENGTH_BYTES, "big"), data, bytes(padded_bytes - framed_bytes)))


def unpad(padded: bytes) -> bytes:
    """Undo `pad`. Raises `AuthFailed` for what it does not write."""
    data = padded[_LENGTH_BYTES : _LENGTH_BYTES + int.from_bytes(padded[:_LENGTH_BYTES], "big")]
    if pad(data) != padded:
        raise AuthFailed("the padding of a sealed page is not what it must be", noun="page")
    return data


def pad_leaf(data: Buffer, size_bytes: int) -> Buffer:
    """Fill up a leaf, so that all of a conversation have one size."""
    return data if len(data) == size_bytes else b"".join((data, bytes(size_bytes - len(data))))


def unpad_leaf(padded: memoryview, size_bytes: int) -> memoryview:
    """Cut a leaf to its size. Raises `AuthFailed` where anything but zeros follows."""
    if len(padded) < size_bytes or any(padded[size_bytes:]):
        raise AuthFailed("the padding of a sealed leaf is not what it must be", noun="leaf")
    return padded[:size_bytes]
