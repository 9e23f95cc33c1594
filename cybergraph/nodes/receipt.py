"""`cyberkv/receipt`: a signed root. It says who claims to have made a conversation, not that it is right."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from ..cid import Cid
from .base import Node
from .grant import UNSIGNED
from .kinds import Bytes, CidBytes, Link, Maybe, Text


@dataclass(frozen=True, slots=True)
class Receipt(Node):
    """One signature over one root. It holds no time: the same claim signed again is the same node."""

    root: Annotated[Cid, Link("dag-cbor")]
    """The conversation. A link, so that whatever carries the receipt carries all of it."""
    model: Annotated[Cid, Link("dag-cbor")]
    """Identity of the model; that of the conversation."""
    producer: Annotated[bytes, Bytes(32)]
    """Ed25519 key of who signed."""
    code: Annotated[str, Text(128)]
    """The program that signed, with its version, and the canonical rule."""
    domain: Annotated[str | None, Maybe(Text(128))]
    """Numeric domain in which the producer says to have computed every block; null where not all in one, or not all by
    the producer."""
    prev: Annotated[Cid | None, Maybe(CidBytes())]
    """The producer's receipt for an earlier root of the same conversation, by name."""
    signature: Annotated[bytes, Bytes(64)]
    """Ed25519 by `producer` over the receipt with 64 zeros here."""

    TYPE: ClassVar = "cyberkv/receipt"

    def body(self) -> bytes:
        """Give what is signed."""
        return b"cyberkv/receipt-sig/v1" + replace(self, signature=UNSIGNED).encode()
