"""What a root promises, in counts and bytes, worked out before anything else is asked for.

The model fixes the size of every leaf and the root fixes how many there are. So a download is bounded by the
root's own words, and a root whose words do not add up is refused before it costs anything.
"""

from collections.abc import Sequence

from ..chain import check_root
from ..cid import Cid
from ..errors import LimitExceeded, MalformedNode
from ..leafsize import layer_groups, leaf_bytes
from ..limits import MAX_LEAF_BYTES, MAX_SEGMENT_LINKS
from ..nodes import Block, Conversation, Model


class Shape:
    """Counts and sizes of one conversation."""

    def __init__(self, cid: Cid, root: Conversation, model: Model) -> None:
        """Check root against model. Raises `MalformedNode` naming the field, `LimitExceeded`."""
        check_root(root)
        if model.block_size != root.block_size:
            raise _inconsistent(cid, "block_size", model.block_size, root.block_size)
        tail_tokens = len(root.tail.tokens)
        tail_kv = root.tail.kv or ()
        tail_sizes = _leaf_bytes(model, tail_tokens) if tail_kv else []
        self.tail_leaves = _pairs(cid, "tail.kv", tail_kv, tail_sizes)
        """Leaf and size of each layer group of the tail."""
        self._block_sizes = _leaf_bytes(model, root.block_size)
        self.block_bytes = sum(self._block_sizes)
        """Payload of one block."""
        self.blocks = (root.length - tail_tokens) // root.block_size
        self.leaf_bytes = self.blocks * self.block_bytes + sum(tail_sizes)
        """Payload of all leaves, counted as if no two were equal."""
        per_block = 1 + len(self._block_sizes)
        self.nodes_and_leaves = 2 + len(root.segments) + self.blocks * per_block + len(tail_kv)
        if self.leaf_bytes > root.bytes:
            raise LimitExceeded(
                f"root {cid} promises {root.bytes} bytes, but its blocks and tail have {self.leaf_bytes}",
                hint="the root is inconsistent; nothing of it was stored",
                cid=str(cid), field="bytes", promised=root.bytes, size_bytes=self.leaf_bytes,
            )  # fmt: skip

    def segment_blocks(self, index: int) -> int:
        """Give the number of blocks that segment `index` lists."""
        return min(MAX_SEGMENT_LINKS, self.blocks - index * MAX_SEGMENT_LINKS)

    def leaves_of(self, cid: Cid, block: Block) -> list[tuple[Cid, int]]:
        """Give the leaves of a block with the size each must have. Raises `MalformedNode` for a wrong number."""
        return _pairs(cid, "kv", block.kv, self._block_sizes)


def check_leaf(cid: Cid, expected_bytes: int, got_bytes: int) -> None:
    """Check the size of a leaf against the model's geometry. Raises `MalformedNode`."""
    if got_bytes != expected_bytes:
        raise _inconsistent(cid, "size_bytes", expected_bytes, got_bytes)


def _inconsistent(cid: Cid, field: str, expected: int, got: int) -> MalformedNode:
    return MalformedNode(
        f"{cid}: {field} is {got}, expected {expected}",
        hint="the conversation does not fit its model; do not use it",
        cid=str(cid), field=field, expected=expected, got=got,
    )  # fmt: skip


def _pairs(cid: Cid, field: str, leaves: Sequence[Cid], sizes: list[int]) -> list[tuple[Cid, int]]:
    if len(leaves) != len(sizes):
        raise _inconsistent(cid, field, len(sizes), len(leaves))
    return list(zip(leaves, sizes, strict=True))


def _leaf_bytes(model: Model, tokens: int) -> list[int]:
    sizes = [
        leaf_bytes(
            layers,
            tokens,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            dtype=model.kv_dtype,
            scheme=model.kv_quant_scheme,
        )
        for _, layers in layer_groups(model.num_layers, model.layers_per_leaf)
    ]
    if sizes[0] > MAX_LEAF_BYTES:
        raise LimitExceeded(f"leaves of {sizes[0]} bytes, limit {MAX_LEAF_BYTES}", size_bytes=sizes[0])
    return sizes
