"""`cyberkv/model-card`: the `.model` manifest people pass around."""

from dataclasses import dataclass
from typing import ClassVar

from ..cid import Cid
from ..limits import MAX_TITLE_BYTES
from .base import Nested, Node, Record
from .kinds import Bytes, Kind, Link, Listing, Maybe, Text


@dataclass(frozen=True, slots=True)
class Signature(Record):
    """Ed25519 over the card with `signature` null."""

    signer: bytes
    signature: bytes

    KINDS: ClassVar[dict[str, Kind]] = {"signer": Bytes(32), "signature": Bytes(64)}


@dataclass(frozen=True, slots=True)
class ModelCard(Node):
    """A model by name, with conversations worth loading beside it (system prompts, documents)."""

    model: Cid
    name: str
    licence: str
    preload: tuple[Cid, ...]
    signature: Signature | None

    TYPE: ClassVar = "cyberkv/model-card"
    KINDS: ClassVar[dict[str, Kind]] = {
        "model": Link("dag-cbor"),
        "name": Text(MAX_TITLE_BYTES),
        "licence": Text(128),
        "preload": Listing(Link("dag-cbor"), 4096),
        "signature": Maybe(Nested(Signature)),
    }
