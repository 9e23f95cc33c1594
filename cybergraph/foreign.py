"""CIDs of other people's blocks: forms that CyberKV never makes and a gateway may meet.

A `ForeignCid` is the binary form, as a `Cid` is, so the two mix as keys and as links. The text form is base32, or
base58 for version 0; `parse_cid` also reads base16, base36, base58 and base64.

>>> cid = parse_cid("QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWKtJDd")
>>> cid
ForeignCid(QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWKtJDd)
>>> cid.codec, cid.hash_name
('dag-pb', 'sha2-256')
>>> parse_cid("bafkreibm6jg3ux5qumhcn2b3flc3tyu6dmlb4xa7u5bf44yegnrjhc4yeq")
Cid(bafkreibm6jg3ux5qumhcn2b3flc3tyu6dmlb4xa7u5bf44yegnrjhc4yeq)
>>> parse_cid("bafkqabdumvzxi").verify(b"test")
"""

from typing import Final, NamedTuple, Self, TypeAlias, Union

from .cid import CID_BYTES, CID_PREFIXES, Buffer, Cid
from .errors import DigestMismatch, MalformedCid, UnsupportedFormat
from .multibase import read_base58, read_multibase, write_base32, write_base58
from .multihash import MOST_DIGEST_BYTES, agrees, hash_name, is_known, proves
from .varint import read_varint

CODECS: Final = {
    0x51: "cbor", 0x55: "raw", 0x70: "dag-pb", 0x71: "dag-cbor", 0x72: "libp2p-key", 0x78: "git-raw", 0x85: "dag-jose",
    0x86: "dag-cose", 0x90: "eth-block", 0xB0: "bitcoin-block", 0x0129: "dag-json", 0x0200: "json", 0x0202: "car",
}  # fmt: skip
"""Names of the codecs that are met most; any other is written as its number."""

MOST_CID_BYTES: Final = 160
MOST_TEXT_CHARS: Final = 330
"""A longest CID in base16."""

_V0_HEAD: Final = bytes((0x12, 0x20))
_V0_BYTES: Final = 34
_V1: Final = b"\x01"


class _Parts(NamedTuple):
    version: int
    codec: int
    hash_at: int
    hash: int
    digest_at: int
    end: int


class ForeignCid(bytes):
    """A CID in binary form, of any version, codec and hash function but those of `Cid`."""

    __slots__ = ()

    def __new__(cls, data: bytes) -> Self:
        """Take all bytes of one CID. Raises `MalformedCid`, also for a CID that is a `Cid`."""
        if _parts(data).end != len(data):
            raise MalformedCid(f"bytes after the end of a CID: {data[:60].hex()}")
        if len(data) == CID_BYTES and data.startswith(CID_PREFIXES):
            raise MalformedCid("a CID of CyberKV's own forms; use Cid")
        return bytes.__new__(cls, data)

    @property
    def version(self) -> int:
        """0 or 1."""
        return _parts(self).version

    @property
    def codec(self) -> str:
        """How the bytes are to be read: a name of `CODECS`, or a number such as `0x300`."""
        code = _parts(self).codec
        return CODECS.get(code, hex(code))

    @property
    def hash_name(self) -> str:
        """The hash function: its name, or a number such as `0x1b` for one that is not known here."""
        return hash_name(_parts(self).hash)

    @property
    def digest(self) -> bytes:
        """The digest bytes; of an identity CID, the data itself."""
        return self[_parts(self).digest_at :]

    @property
    def multihash(self) -> bytes:
        """Hash function, length and digest: what CIDs of the same bytes have in common."""
        return self[_parts(self).hash_at :]

    def verify(self, data: Buffer) -> None:
        """Check that `data` hashes to this CID.

        Raises `DigestMismatch`, and `UnsupportedFormat` for a hash function that is not known or a digest too short to
        prove anything: such a block cannot be checked.
        """
        self.require_checkable()
        if not agrees(_parts(self).hash, self.digest, data):
            raise DigestMismatch(f"bytes do not hash to {self}", cid=str(self))

    def require_checkable(self) -> None:
        """Raise `UnsupportedFormat` if nothing could be checked against this CID."""
        code, digest = _parts(self).hash, self.digest
        if not is_known(code):
            raise UnsupportedFormat(
                f"{self} is named by hash function {code:#x}, which is not known here: its bytes cannot be checked",
                hint="a block that cannot be checked is not served", cid=str(self), hash=code,
            )  # fmt: skip
        if not proves(code, digest):
            raise UnsupportedFormat(
                f"{self} has a digest of {len(digest)} bytes, which is no proof for {self.hash_name}",
                hint="a block that cannot be checked is not served", cid=str(self), hash=code,
            )  # fmt: skip

    def __str__(self) -> str:
        return write_base58(self) if self.version == 0 else write_base32(self)

    def __repr__(self) -> str:
        return f"ForeignCid({self})"


AnyCid: TypeAlias = Cid | ForeignCid
AnyValue: TypeAlias = Union[  # noqa: UP007
    bool, int, float, str, bytes, Cid, ForeignCid, list["AnyValue"], dict[str, "AnyValue"], None
]
"""What other people's nodes hold: as `dagcbor.Value`, and floats and links of every kind."""


def any_cid(data: bytes) -> AnyCid:
    """Take the binary form of a CID of any kind. Raises `MalformedCid`."""
    return Cid(data) if len(data) == CID_BYTES and data.startswith(CID_PREFIXES) else ForeignCid(data)


def read_cid(data: bytes) -> tuple[AnyCid, int]:
    """Read the CID at the beginning of `data`: give it and its length in bytes. Raises `MalformedCid`."""
    if data.startswith(CID_PREFIXES) and len(data) >= CID_BYTES:
        return Cid(data[:CID_BYTES]), CID_BYTES
    end = _parts(data).end
    return ForeignCid(data[:end]), end


def multihash_of(cid: AnyCid) -> bytes:
    """Give hash function, length and digest: what CIDs of the same bytes have in common, whatever their codec."""
    return cid[2:] if isinstance(cid, Cid) else cid.multihash


def parse_cid(text: str) -> AnyCid:
    """Read the text form of a CID of any kind, in any common base. Raises `MalformedCid`."""
    if len(text) == 59 and text[0] == "b":
        try:
            return Cid.parse(text)
        except MalformedCid:
            pass  # 59 letters of another form
    if not 2 <= len(text) <= MOST_TEXT_CHARS or not text.isascii():
        raise _no_cid(text)
    try:
        if len(text) == 46 and text.startswith("Qm"):
            return any_cid(read_base58(text))
        cid = any_cid(read_multibase(text))
    except ValueError as error:
        raise _no_cid(text) from error
    if cid[0] == _V0_HEAD[0]:
        raise _no_cid(text)  # version 0 has one form alone
    return cid


def _no_cid(text: str) -> MalformedCid:
    return MalformedCid(f"not a CID: {text[:80]!r}", hint="a CID begins with b, z, k, f or Qm; copy all of it")


def _parts(data: bytes) -> _Parts:
    """Find the parts of the CID at the beginning of `data`. Raises `MalformedCid`."""
    if data.startswith(_V0_HEAD):
        parts = _Parts(0, 0x70, 0, 0x12, len(_V0_HEAD), _V0_BYTES)
    elif not data.startswith(_V1):
        raise MalformedCid(f"CID of another version than 0 and 1: {data[:60].hex()}")
    else:
        try:
            codec, hash_at = read_varint(data, len(_V1))
            hash_code, size_at = read_varint(data, hash_at)
            size_bytes, digest_at = read_varint(data, size_at)
        except (EOFError, ValueError) as error:
            raise MalformedCid(f"CID with {error}: {data[:60].hex()}") from error
        if size_bytes > MOST_DIGEST_BYTES:
            raise MalformedCid(f"CID with a digest of {size_bytes} bytes, limit {MOST_DIGEST_BYTES}")
        parts = _Parts(1, codec, hash_at, hash_code, digest_at, digest_at + size_bytes)
    if parts.end > len(data):
        raise MalformedCid(f"CID that ends early: {data[:60].hex()}")
    return parts
