"""Content identifiers: 36 bytes that name a block by its hash.

CyberKV uses four of the many CID forms: version 1, raw or dag-cbor, sha2-256 or blake3. A `Cid` is those 36
bytes, so it is a dictionary key, a database key and a wire value without conversion.

>>> cid = Cid.of(b"hello", codec="raw", hash_name="sha2-256")
>>> str(cid)
'bafkreibm6jg3ux5qumhcn2b3flc3tyu6dmlb4xa7u5bf44yegnrjhc4yeq'
>>> Cid.parse(str(cid)) == cid
True
>>> cid.codec, cid.hash_name, len(cid)
('raw', 'sha2-256', 36)
>>> cid.verify(b"hellO")  # doctest: +ELLIPSIS
Traceback (most recent call last):
...
cyberkv.cybergraph.errors.DigestMismatch: bytes do not hash to bafkreibm6jg3...
"""

import hashlib
from collections.abc import Callable
from typing import Final, Literal, Self, TypeAlias

from blake3 import blake3

from .errors import DigestMismatch, MalformedCid

Buffer: TypeAlias = bytes | bytearray | memoryview
Codec = Literal["raw", "dag-cbor"]
HashName = Literal["sha2-256", "blake3"]

CID_BYTES: Final = 36
TEXT_CHARS: Final = 59

_FORMS: Final[dict[bytes, tuple[Codec, HashName]]] = {
    bytes.fromhex("01551220"): ("raw", "sha2-256"),
    bytes.fromhex("01551e20"): ("raw", "blake3"),
    bytes.fromhex("01711220"): ("dag-cbor", "sha2-256"),
    bytes.fromhex("01711e20"): ("dag-cbor", "blake3"),
}
CID_PREFIXES: Final = tuple(_FORMS)
_PREFIXES: Final = {form: prefix for prefix, form in _FORMS.items()}
_bytes_new = bytes.__new__


def _sha2_256(data: Buffer) -> bytes:
    return hashlib.sha256(data).digest()


def _blake3(data: Buffer) -> bytes:
    return blake3(data).digest()


HASHES: Final[dict[HashName, Callable[[Buffer], bytes]]] = {"sha2-256": _sha2_256, "blake3": _blake3}

# Text is one number written in base 32: the letter b (digit 1), the 288 bits of the CID, two spare zero bits.
_ALPHABET: Final = b"abcdefghijklmnopqrstuvwxyz234567"
_LETTERS: Final = _ALPHABET + bytes(256 - 32)
_PYTHON_DIGITS: Final = bytes(
    b"0123456789abcdefghijklmnopqrstuv"[_ALPHABET.index(char)] if char in _ALPHABET else ord("!") for char in range(256)
)
_MULTIBASE: Final = 1 << 290


def _spread_steps() -> tuple[tuple[int, int, int], ...]:
    # Each step halves runs of 5-bit digits and moves the upper halves up, so that after six of them every
    # digit has a byte of its own: six operations on one integer instead of 59 on digits.
    steps = []
    for digits in (32, 16, 8, 4, 2, 1):
        low = sum(((1 << 5 * digits) - 1) << at for at in range(0, 512, 16 * digits))
        steps.append((low << 5 * digits, 3 * digits, low))
    return tuple(steps)


_SPREAD: Final = _spread_steps()


class Cid(bytes):
    """A CIDv1 in binary form: version, codec, hash function, digest length, 32 digest bytes."""

    __slots__ = ()

    def __new__(cls, data: bytes) -> Self:
        """Take 36 binary bytes. Raises `MalformedCid` for any other form of CID."""
        if len(data) == CID_BYTES and data.startswith(CID_PREFIXES):
            return _bytes_new(cls, data)
        raise MalformedCid(
            f"not a CID of the supported forms: {bytes(data[:40]).hex()}",
            hint="CyberKV reads CIDv1 with raw or dag-cbor and sha2-256 or blake3",
        )

    @classmethod
    def of(cls, data: Buffer, codec: Codec, hash_name: HashName) -> Self:
        """Hash `data` and name it."""
        return _bytes_new(cls, _PREFIXES[codec, hash_name] + HASHES[hash_name](data))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form (`b` + lower-case base32). Raises `MalformedCid`."""
        if len(text) == TEXT_CHARS and text[0] == "b":
            try:
                number = int(text.encode().translate(_PYTHON_DIGITS), 32) ^ _MULTIBASE
            except ValueError:
                number = -1
            if number & 3 == 0:  # the spare bits: only zero is canonical
                return cls((number >> 2).to_bytes(CID_BYTES, "big"))
        raise MalformedCid(
            f"not a CID: {text[:80]!r}",
            hint="a CID is b and 58 letters a-z or digits 2-7; one may be missing or changed",
        )

    @property
    def codec(self) -> Codec:
        """`raw` for leaves, `dag-cbor` for nodes."""
        return _FORMS[self[:4]][0]

    @property
    def hash_name(self) -> HashName:
        """The hash function that names the bytes."""
        return _FORMS[self[:4]][1]

    @property
    def digest(self) -> bytes:
        """The 32 digest bytes."""
        return self[4:]

    def verify(self, data: Buffer) -> None:
        """Check that `data` hashes to this CID. Raises `DigestMismatch`."""
        if HASHES[self.hash_name](data) != self[4:]:
            raise DigestMismatch(f"bytes do not hash to {self}", cid=str(self))

    def __str__(self) -> str:
        number = int.from_bytes(self, "big") << 2 | _MULTIBASE
        for high, shift, low in _SPREAD:
            number = (number & high) << shift | number & low
        return number.to_bytes(TEXT_CHARS, "big").translate(_LETTERS).decode()

    def __repr__(self) -> str:
        return f"Cid({self})"
