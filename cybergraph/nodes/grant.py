"""`cyberkv/grant`: who may read a sealed conversation, without saying who; and the two lists that go with it."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Final

from ..cid import Cid
from ..limits import MAX_EPOCH, MAX_PINSET_LINKS, MAX_RING_KEYS, MAX_WRAP_BYTES, MAX_WRAPS
from .base import Node
from .kinds import Blob, Bytes, CidBytes, Link, Links, Listing, Maybe, Text, Uint

UNSIGNED: Final = bytes(64)


@dataclass(frozen=True, slots=True)
class Grant(Node):
    """The content key of one epoch, wrapped once for each reader, signed by who gives access."""

    issuer: Annotated[bytes, Bytes(32)]
    """Ed25519 key of who signed."""
    lineage: Annotated[bytes, Bytes(16)]
    """The same for every epoch of one conversation."""
    epoch: Annotated[int, Uint(MAX_EPOCH, least=1)]
    """Grows when readers are revoked."""
    root: Annotated[Cid, Link("raw")]
    """The sealed page table that this opens."""
    prev: Annotated[Cid | None, Maybe(CidBytes())]
    """The grant before, by name."""
    alg: Annotated[int, Uint(255, least=1)]
    """Cipher of the leaves and pages."""
    commitment: Annotated[bytes, Bytes(32)]
    """Binds issuer, lineage and epoch to one content key."""
    access: Annotated[bytes, Bytes(32)]
    """Ed25519 key whose secret half every reader can derive."""
    ring: Annotated[Cid | None, Maybe(Link("dag-cbor"))]
    """The `cyberkv/ring` of readers among whom one may hide, or null."""
    kem: Annotated[str, Text(choices=("x25519", "mlkem768-x25519"))]
    wraps: Annotated[tuple[bytes, ...], Listing(Blob(MAX_WRAP_BYTES), MAX_WRAPS, least=1)]
    """A power of two of them; some are for nobody, and their order says nothing."""
    signature: Annotated[bytes, Bytes(64)]
    """Ed25519 by `issuer` over the grant with 64 zeros here."""

    TYPE: ClassVar = "cyberkv/grant"

    def body(self) -> bytes:
        """Give what is signed."""
        return b"cyberkv/grant-sig/v1" + replace(self, signature=UNSIGNED).encode()


@dataclass(frozen=True, slots=True)
class PinSet(Node):
    """What to pin and to move together: everything sealed, in the order of the CIDs, which says nothing."""

    links: Annotated[tuple[Cid, ...], Links(None, MAX_PINSET_LINKS, least=1)]
    """Sealed leaves and pages, or pin sets of these."""

    TYPE: ClassVar = "cyberkv/pinset"


@dataclass(frozen=True, slots=True)
class Ring(Node):
    """Keys of secp256k1, sorted and distinct, of which one may show that it is among them."""

    keys: Annotated[tuple[bytes, ...], Listing(Bytes(33), MAX_RING_KEYS, least=1)]

    TYPE: ClassVar = "cyberkv/ring"
