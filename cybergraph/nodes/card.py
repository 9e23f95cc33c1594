"""`cyberkv/model-card`: the `.model` manifest people pass around."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from ..cid import Cid
from ..limits import MAX_TITLE_BYTES
from .base import Nested, Node, Record
from .kinds import Bytes, Link, Links, Maybe, Text

MAX_LICENCE_BYTES: Final = 128


@dataclass(frozen=True, slots=True)
class Signature(Record):
    """Ed25519 over the card with `signature` null."""

    signer: Annotated[bytes, Bytes(32)]
    signature: Annotated[bytes, Bytes(64)]


@dataclass(frozen=True, slots=True)
class ModelCard(Node):
    """A model by name, with conversations worth loading beside it (system prompts, documents)."""

    model: Annotated[Cid, Link("dag-cbor")]
    name: Annotated[str, Text(MAX_TITLE_BYTES)]
    licence: Annotated[str, Text(MAX_LICENCE_BYTES)]
    preload: Annotated[tuple[Cid, ...], Links("dag-cbor", 4096)]
    signature: Annotated[Signature | None, Maybe(Nested(Signature))]

    TYPE: ClassVar = "cyberkv/model-card"
