"""`cyberkv/block`: the K and V of `block_size` consecutive tokens, as one leaf per layer group."""

from dataclasses import dataclass
from typing import ClassVar

from ..cid import Cid
from ..limits import MAX_BLOCK_TOKENS, MAX_LEAVES_PER_BLOCK
from .base import Node
from .kinds import CidBytes, Kind, Link, Listing, Maybe, Tokens

@dataclass(frozen=True, slots=True)
class Block(Node):
    """One sealed block."""

    model: Cid
    """Identity of the model that computed it."""
    prev: Cid | None
    """The block before, by name and not by link: nothing recurses over the length of a conversation."""
    tokens: tuple[int, ...]
    """The token ids of the window."""
    kv: tuple[Cid, ...]
    """Leaves, one per layer group, lowest layers first."""

    TYPE: ClassVar = "cyberkv/block"
    KINDS: ClassVar[dict[str, Kind]] = {
        "model": Link("dag-cbor"),
        "prev": Maybe(CidBytes()),
        "tokens": Tokens(MAX_BLOCK_TOKENS, least=1),
        "kv": Listing(Link("raw"), MAX_LEAVES_PER_BLOCK, least=1),
    }
