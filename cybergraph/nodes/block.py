"""`cyberkv/block`: the K and V of `block_size` consecutive tokens, as one leaf per layer group."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ..cid import Cid
from ..limits import MAX_BLOCK_TOKENS, MAX_LEAVES_PER_BLOCK
from .base import Node
from .kinds import CidBytes, Link, Links, Maybe, Tokens


@dataclass(frozen=True, slots=True)
class Block(Node):
    """One sealed block."""

    model: Annotated[Cid, Link("dag-cbor")]
    """Identity of the model that computed it."""
    prev: Annotated[Cid | None, Maybe(CidBytes())]
    """The block before, by name and not by link: nothing recurses over the length of a conversation."""
    tokens: Annotated[tuple[int, ...], Tokens(MAX_BLOCK_TOKENS, least=1)]
    """The token ids of the window."""
    kv: Annotated[tuple[Cid, ...], Links("raw", MAX_LEAVES_PER_BLOCK, least=1)]
    """Leaves, one per layer group, lowest layers first."""

    TYPE: ClassVar = "cyberkv/block"
