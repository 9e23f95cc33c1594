"""How large a leaf is: the one place for this arithmetic.

A leaf holds `[layers][K, V][tokens][num_kv_heads]` rows of one layer group. A row is the `head_dim` numbers of one
token and KV head: as they are, or quantised and followed by their scale.

>>> leaf_bytes(4, 16, num_kv_heads=8, head_dim=128, dtype="bf16", scheme="none") == 256 << 10
True
>>> head_row_bytes(64, "f32", "none"), head_row_bytes(64, "f32", "int8/row/f32")
(256, 68)
>>> layer_groups(10, 4)
((0, 4), (4, 4), (8, 2))
"""

from fractions import Fraction
from typing import Final, Literal

KvDtype = Literal["f32", "bf16", "f16"]
"""Element type of keys and values as attention reads them."""

KvScheme = Literal["none", "int8/row/f32"]
"""How they are stored. `int8/row/f32`: signed integers of 8 bits, symmetric, one float32 scale for each row."""

ELEMENT_BYTES: Final[dict[str, int]] = {"f32": 4, "bf16": 2, "f16": 2}
SCALE_BYTES: Final = 4

RELATIVE_ERROR: Final[dict[str, Fraction]] = {"none": Fraction(0), "int8/row/f32": Fraction(1, 254)}
"""By scheme: how far a stored number may be from the one that was computed, in parts of the largest of its row. It is
half a step, of which the largest number has 127; rows of nothing above 127 * 2^-126 have steps of 2^-126."""


def head_row_bytes(head_dim: int, dtype: str, scheme: str) -> int:
    """Give the size of K, or V, of one token and KV head."""
    return head_dim * ELEMENT_BYTES[dtype] if scheme == "none" else head_dim + SCALE_BYTES


def leaf_bytes(layers: int, tokens: int, *, num_kv_heads: int, head_dim: int, dtype: str, scheme: str) -> int:
    """Give the size of a leaf of `layers` layers with `tokens` rows of each KV head."""
    return 2 * layers * tokens * num_kv_heads * head_row_bytes(head_dim, dtype, scheme)


def layer_groups(num_layers: int, layers_per_leaf: int) -> tuple[tuple[int, int], ...]:
    """Give first layer and number of layers of each group; the last may be smaller."""
    return tuple((first, min(layers_per_leaf, num_layers - first)) for first in range(0, num_layers, layers_per_leaf))
