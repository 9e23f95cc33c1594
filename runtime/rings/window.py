"""Which rows a window still needs, and what that makes of a block.

A block of a conversation is *live* while every layer reads it, *aged* once the window of some layer is past it, and
*archived* when no layer reads it and its row of the pool was given back. These are states of residency, not of the
node: an archived block is the same block under the same name, in the store and in its conversation.

>>> kinds = LayerKind(window=8), LayerKind(window=None)
>>> [readers(kinds, block, block_size=16, length=64) for block in range(4)]
[(1,), (1,), (0, 1), (0, 1)]
>>> unread_blocks(kinds, block_size=16, length=64), unread_blocks(kinds[:1], block_size=16, length=64)
(0, 2)

What live rows take follows from the same rule. 39 layers with a window of 2,048 and 13 full ones, K and V of
two heads of 128 in two bytes each:

>>> row_bytes = 2 * 128 * 2
>>> sliding, full = [LayerKind(window=2048)] * 39, [LayerKind(rotated=False)] * 13
>>> row_bytes, 2 * row_bytes, live_bytes(sliding + full, 1, row_bytes)
(512, 1024, 53248)
>>> live_bytes(sliding, 131_072, row_bytes), live_bytes(full, 131_072, row_bytes)
(81788928, 1744830464)
>>> slot = live_bytes(sliding + full, 131_072, row_bytes)
>>> slot, f"{slot / 1e9:.3f} GB", f"{slot / 2**30:.3f} GiB", f"{4 * slot / 1e9:.3f} GB"
(1826619392, '1.827 GB', '1.701 GiB', '7.306 GB')
>>> [f"{live_bytes(sliding + full, tokens, row_bytes) / 1e9:.3f} GB" for tokens in (8_192, 32_768)]
['0.191 GB', '0.518 GB']
>>> live_bytes(sliding + full, 130_814, row_bytes) == 130_814 * 13_312 + 3 * 2_048 * 13_312 == 1_823_184_896
True
"""

from collections.abc import Sequence
from enum import StrEnum

from ..attention.panels import FLOOR_ROWS
from ..models.config_layers import LayerKind

SLACK_ROWS = 256
"""Rows of a ring beyond the window: as many as a block at most has, for its rows are made again when it fills."""
LEAST_ROWS = 32


class Stage(StrEnum):
    """Residency of a block in one live sequence."""

    LIVE = "live"
    AGED = "aged"
    ARCHIVED = "archived"


def ring_capacity(window: int, max_positions: int) -> int:
    """Rows of a ring: the window and some, no more than the model has positions, and not fewer than 32.

    >>> ring_capacity(2048, 131_072), ring_capacity(2048, 512), ring_capacity(8, 16)
    (2304, 512, 32)
    """
    return max(LEAST_ROWS, min(window + SLACK_ROWS, max_positions))


def first_read(window: int | None, start: int) -> int:
    """Give the first position that a layer reads for rows at `start` and after.

    >>> first_read(None, 100), first_read(8, 100), first_read(8, 3)
    (0, 93, 0)
    """
    return 0 if window is None else max(0, start - window + 1)


def first_live(window: int | None, length: int) -> int:
    """Give the first position that a layer reads after `length` tokens, when up to 16 last rows may be repeated.

    >>> first_live(None, 100), first_live(8, 100), first_live(8, 3)
    (0, 77, 0)
    """
    return first_read(window, max(0, length - FLOOR_ROWS))


def readers(kinds: Sequence[LayerKind], block: int, *, block_size: int, length: int) -> tuple[int, ...]:
    """List the layers that still read a block after `length` tokens."""
    end = (block + 1) * block_size
    return tuple(layer for layer, kind in enumerate(kinds) if first_live(kind.window, length) < end)


def unread_blocks(kinds: Sequence[LayerKind], *, block_size: int, length: int) -> int:
    """Count the leading blocks that no layer reads after `length` tokens."""
    return min(first_live(kind.window, length) // block_size for kind in kinds)


def live_bytes(kinds: Sequence[LayerKind], tokens: int, row_bytes: int) -> int:
    """Add up K and V of the rows that are read after `tokens` tokens; `row_bytes` is K of one token in one layer."""
    return sum(2 * row_bytes * min(tokens, kind.window or tokens) for kind in kinds)
