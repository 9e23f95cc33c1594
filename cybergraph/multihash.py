"""The hash functions that other people's CIDs name: what a block can be checked by.

>>> hash_name(0x1E), hash_name(0x1B)
('blake3', '0x1b')
>>> agrees(0x12, bytes.fromhex("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"), b"hello")
True
"""

import hashlib
from collections.abc import Callable
from typing import Final, TypeAlias

from blake3 import blake3

from .cid import Buffer

MOST_DIGEST_BYTES: Final = 128
"""Longest digest, and so longest data of an identity CID: what other implementations accept, too."""
LEAST_DIGEST_BYTES: Final = 20
"""Shortest digest that is accepted as proof, except of the identity, which holds all of the data."""
IDENTITY: Final = 0x00
"""The function whose digest is the data itself."""

_Digest: TypeAlias = Callable[[Buffer], bytes]


def hash_name(code: int) -> str:
    """Give the name of a function, or its number such as `0x1b` if it is not known here."""
    return _HASHES[code][0] if code in _HASHES else hex(code)


def is_known(code: int) -> bool:
    """Say whether blocks can be checked by a function."""
    return code in _HASHES


def proves(code: int, digest: bytes) -> bool:
    """Say whether a digest is as long as a proof must be, and no longer than a known function gives."""
    return (0 if code == IDENTITY else LEAST_DIGEST_BYTES) <= len(digest) <= _HASHES[code][1]


def agrees(code: int, digest: bytes, data: Buffer) -> bool:
    """Say whether `data` has this digest under a known function. A digest may be a beginning of all that it gives."""
    if code == IDENTITY:
        return data == digest
    return _HASHES[code][2](data)[: len(digest)] == digest


def _named(name: str) -> _Digest:
    return lambda data: hashlib.new(name, data, usedforsecurity=False).digest()


def _double_sha2_256(data: Buffer) -> bytes:
    return hashlib.sha256(hashlib.sha256(data).digest()).digest()


def _blake2(function: type[hashlib.blake2b] | type[hashlib.blake2s], size_bytes: int) -> _Digest:
    return lambda data: function(data, digest_size=size_bytes).digest()


def _hashes() -> dict[int, tuple[str, int, _Digest]]:
    """List the hash functions by code: name, longest digest in bytes, function."""
    table: dict[int, tuple[str, int, _Digest]] = {
        IDENTITY: ("identity", MOST_DIGEST_BYTES, bytes),
        0x11: ("sha1", 20, _named("sha1")),
        0x12: ("sha2-256", 32, _named("sha256")),
        0x13: ("sha2-512", 64, _named("sha512")),
        0x14: ("sha3-512", 64, _named("sha3_512")),
        0x15: ("sha3-384", 48, _named("sha3_384")),
        0x16: ("sha3-256", 32, _named("sha3_256")),
        0x17: ("sha3-224", 28, _named("sha3_224")),
        0x19: ("shake-256", 64, lambda data: hashlib.shake_256(data).digest(64)),
        0x1E: ("blake3", MOST_DIGEST_BYTES, lambda data: blake3(data).digest(MOST_DIGEST_BYTES)),
        0x20: ("sha2-384", 48, _named("sha384")),
        0x56: ("dbl-sha2-256", 32, _double_sha2_256),
    }
    for size in range(LEAST_DIGEST_BYTES, 65):
        table[0xB200 + size] = f"blake2b-{8 * size}", size, _blake2(hashlib.blake2b, size)
    for size in range(LEAST_DIGEST_BYTES, 33):
        table[0xB240 + size] = f"blake2s-{8 * size}", size, _blake2(hashlib.blake2s, size)
    return table


_HASHES: Final = _hashes()
