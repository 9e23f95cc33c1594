"""`cyberkv/sealed`: the public face of an access-controlled conversation. It names ciphertext only."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ..cid import Cid
from ..limits import MAX_EPOCH
from .base import Node
from .kinds import Bytes, Link, Uint


@dataclass(frozen=True, slots=True)
class Sealed(Node):
    """Sealed page table, the grant that opens it, and the set of what to pin."""

    alg: Annotated[int, Uint(255, least=1)]
    """Cipher of leaves and pages: 1 is AES-256-GCM, 2 ChaCha20-Poly1305."""
    lineage: Annotated[bytes, Bytes(16)]
    """The same for every epoch of one conversation."""
    epoch: Annotated[int, Uint(MAX_EPOCH, least=1)]
    commitment: Annotated[bytes, Bytes(32)]
    """Binds lineage and epoch to one content key."""
    grant: Annotated[Cid, Link("dag-cbor")]
    """Who may read."""
    manifest: Annotated[Cid, Link("raw")]
    """First page of the page table."""
    pinset: Annotated[Cid, Link("dag-cbor")]
    """All that is sealed."""

    TYPE: ClassVar = "cyberkv/sealed"
