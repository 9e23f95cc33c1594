"""Content identifiers: 36 bytes that name a block by its hash.

CyberKV uses four of the many CID forms: version 1, raw or dag-cbor, sha2-256 or blake3. A `Cid` is those 36 bytes,
so it is a dictionary key, a database key and a wire value without conversion.

>>> cid = Cid.of(b"hello", codec="raw", hash_name="sha2-256")
>>> str(cid)
'bafkreibm6jg3ux5qumhcn2b3flc3tyu6dmlb4xa7u5bf44yegnrjhc4yeq'
>>> Cid.parse(str(cid)) == cid
True
>>> cid.codec, cid.hash_name, len(cid)
('raw', 'sha2-256', 36)
>>> cid.verify(b"hellO")
Traceback (most recent call last):
...
cyberkv.cybergraph.errors.DigestMismatch: bytes do not hash to bafkreibm6jg3ux5qumhcn2b3flc3tyu6dmlb4xa7u5bf44yegnrjhc4yeq
"""

import base64
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
CID_PREFIXES: Final = frozenset(_FORMS)
_PREFIXES: Final = {form: prefix for prefix, form in _FORMS.items()}


def _sha2_256(data: Buffer) -> bytes:
    return hashlib.sha256(data).digest()


def _blake3(data: Buffer) -> bytes:
    return blake3(data).digest()


HASHES: Final[dict[HashName, Callable[[Buffer], bytes]]] = {"sha2-256": _sha2_256, "blake3": _blake3}


class Cid(bytes):
    """A CIDv1 in binary form: version, codec, hash function, digest length, 32 digest bytes."""

    __slots__ = ()

    def __new__(cls, data: bytes) -> Self:
        """Take 36 binary bytes. Raises `MalformedCid` for any other form of CID."""
        if len(data) != CID_BYTES or data[:4] not in _FORMS:
            raise MalformedCid(
                f"not a CID of the supported forms: {bytes(data[:40]).hex()}",
                hint="CyberKV reads CIDv1 with raw or dag-cbor and sha2-256 or blake3",
            )
        return bytes.__new__(cls, data)

    @classmethod
    def of(cls, data: Buffer, codec: Codec, hash_name: HashName) -> Self:
        """Hash `data` and name it."""
        return bytes.__new__(cls, _PREFIXES[codec, hash_name] + HASHES[hash_name](data))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form (`b` + lower-case base32). Raises `MalformedCid`."""
        if len(text) == TEXT_CHARS and text[0] == "b" and text == text.lower():
            try:
                cid = cls(base64.b32decode(text[1:].upper() + "======"))
            except ValueError as error:
                raise MalformedCid(f"not a CID: {text!r}", hint="check for a missing or changed letter") from error
            if str(cid) == text:  # base32 leaves spare bits at the end: only zero is canonical
                return cid
        raise MalformedCid(f"not a CID: {text[:80]!r}", hint="a CID is 59 characters and starts with b")

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
        if HASHES[self.hash_name](data) != self.digest:
            raise DigestMismatch(f"bytes do not hash to {self}", cid=str(self))

    def __str__(self) -> str:
        return "b" + base64.b32encode(self)[:58].decode().lower()

    def __repr__(self) -> str:
        return f"Cid({self})"
