"""In which order the leaves of a conversation are needed: layer by layer, and what no layer reads at last.

A leaf is a group of layers of one block. Attention of a layer reads its group of every block that its window sees, so
with the first group of all blocks here, the first layers can be computed while the others are on their way.

>>> from ..models.config_layers import LayerKind
>>> kinds = LayerKind(window=8), LayerKind(window=None)
>>> order = need_order(kinds, 3, block_size=16, layers_per_leaf=1)
>>> order.needed                                   # the window of layer 0 sees the last two blocks
(((1, 0), (2, 0)), ((0, 1), (1, 1), (2, 1)))
>>> order.unread
((0, 0),)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...cybergraph.leafsize import layer_groups
from ..models.config_layers import LayerKind
from ..rings.window import first_live

Place: TypeAlias = tuple[int, int]
"""Block and layer group."""


@dataclass(frozen=True, slots=True)
class NeedOrder:
    """Every leaf of some blocks, once."""

    needed: tuple[tuple[Place, ...], ...]
    """By group: what its layers read for the token after the last block."""
    unread: tuple[Place, ...]
    """What no layer reads any more; it is part of the conversation all the same."""


def need_order(
    kinds: Sequence[LayerKind], blocks: int, *, block_size: int, layers_per_leaf: int, first: int = 0
) -> NeedOrder:
    """Order the leaves of blocks `first` to `blocks` (excluded) by the layer that needs them first."""
    needed: list[tuple[Place, ...]] = []
    unread: list[Place] = []
    for group, (layer, count) in enumerate(layer_groups(len(kinds), layers_per_leaf)):
        reads_from = min(first_live(kind.window, blocks * block_size) for kind in kinds[layer : layer + count])
        begins = min(blocks, max(first, reads_from // block_size))
        needed.append(tuple((block, group) for block in range(begins, blocks)))
        unread += [(block, group) for block in range(first, begins)]
    return NeedOrder(tuple(needed), tuple(unread))
