"""`cyberkv/sealed`: the public face of an access-controlled conversation. It names ciphertext only."""

from dataclasses import dataclass
from typing import ClassVar

from ..cid import Cid
from .base import Node
from .kinds import Bytes, Kind, Link, Uint


@dataclass(frozen=True, slots=True)
class Sealed(Node):
    """Encrypted page table, the grant that opens it, and the set of ciphertext leaves to pin."""

    alg: int
    lineage: bytes
    epoch: int
    commitment: bytes
    grant: Cid
    manifest: Cid
    pinset: Cid

    TYPE: ClassVar = "cyberkv/sealed"
    KINDS: ClassVar[dict[str, Kind]] = {
        "alg": Uint(255),
        "lineage": Bytes(32),
        "epoch": Uint((1 << 32) - 1),
        "commitment": Bytes(32),
        "grant": Link("dag-cbor"),
        "manifest": Link("raw"),
        "pinset": Link("dag-cbor"),
    }
