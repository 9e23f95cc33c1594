"""`cyberkv/sealed`: the public face of an access-controlled conversation. It names ciphertext only."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ..cid import Cid
from .base import Node
from .kinds import Bytes, Link, Uint


@dataclass(frozen=True, slots=True)
class Sealed(Node):
    """Encrypted page table, the grant that opens it, and the set of ciphertext leaves to pin."""

    alg: Annotated[int, Uint(255)]
    lineage: Annotated[bytes, Bytes(32)]
    epoch: Annotated[int, Uint((1 << 32) - 1)]
    commitment: Annotated[bytes, Bytes(32)]
    grant: Annotated[Cid, Link("dag-cbor")]
    manifest: Annotated[Cid, Link("raw")]
    pinset: Annotated[Cid, Link("dag-cbor")]

    TYPE: ClassVar = "cyberkv/sealed"
