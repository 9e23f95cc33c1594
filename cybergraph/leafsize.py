"""How large a leaf is: the one place for this arithmetic.

A leaf holds `[layers][K, V][tokens][num_kv_heads][head_dim]` of one layer group.

>>> leaf_bytes(4, 16, num_kv_heads=8, head_dim=128, dtype="bf16") == 256 << 10
True
>>> layer_groups(10, 4)
((0, 4), (4, 4), (8, 2))
"""

from typing import Final, Literal

KvDtype = Literal["f32", "bf16", "f16"]
"""Element type of stored keys and values."""

ELEMENT_BYTES: Final[dict[str, int]] = {"f32": 4, "bf16": 2, "f16": 2}


def leaf_bytes(layers: int, tokens: int, *, num_kv_heads: int, head_dim: int, dtype: str) -> int:
    """Give the size of a leaf of `layers` layers with `tokens` rows each."""
    return 2 * layers * tokens * num_kv_heads * head_dim * ELEMENT_BYTES[dtype]


def layer_groups(num_layers: int, layers_per_leaf: int) -> tuple[tuple[int, int], ...]:
    """Give first layer and number of layers of each group; the last may be smaller."""
    return tuple((first, min(layers_per_leaf, num_layers - first)) for first in range(0, num_layers, layers_per_leaf))
