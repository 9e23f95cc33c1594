"""How many bytes a model's KV cache takes, and how they are cut into leaves. Integers only, no tensors.

A leaf holds `[layers][K, V][block_size][num_kv_heads]` rows of one layer group of one block, little endian. A row is
`head_dim` numbers, or those quantised, with their scale.

>>> llama_8b = Geometry(32, 8, 128, block_size=16, layers_per_leaf=4, dtype="bf16")
>>> llama_8b.layer_bytes == 16 * 8 * 128 * 2 * 2 == 65_536
True
>>> llama_8b.bytes_per_token == 128 << 10
True
>>> size = llama_8b.size(128_000)
>>> size.total_bytes, size.total_bytes / 2**30, size.blocks, size.blocks * llama_8b.num_layers
(16777216000, 15.625, 8000, 256000)

SmolLM2-135M in f32: 24 KiB a layer, ten layers a leaf, three leaves a block.

>>> layers_per_leaf(30, 3, 64, block_size=16, dtype="f32")
10
>>> smollm2 = Geometry(30, 3, 64, block_size=16, layers_per_leaf=10, dtype="f32")
>>> smollm2.layer_bytes, smollm2.leaf_layers, smollm2.leaf_bytes(0), smollm2.bytes_per_token
(24576, ((0, 10), (10, 10), (20, 10)), 245760, 46080)

Quantised, a row of 64 takes 68 bytes, and all layers fit in one leaf.

>>> layers_per_leaf(30, 3, 64, block_size=16, dtype="f32", scheme="int8/row/f32")
30
>>> quantised = Geometry(30, 3, 64, block_size=16, layers_per_leaf=30, dtype="f32", scheme="int8/row/f32")
>>> quantised.bytes_per_token, quantised.bytes_per_token / smollm2.bytes_per_token
(12240, 0.265625)
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Self

from ..cybergraph.errors import UnsupportedModel
from ..cybergraph.leafsize import ELEMENT_BYTES, KvDtype, KvScheme, head_row_bytes, layer_groups, leaf_bytes
from ..cybergraph.limits import MAX_BLOCK_TOKENS, MAX_LAYERS, MAX_LEAF_BYTES
from ..cybergraph.nodes import Model

__all__ = ["ELEMENT_BYTES", "TARGET_LEAF_BYTES", "Geometry", "KvDtype", "KvScheme", "Size", "layers_per_leaf"]

TARGET_LEAF_BYTES: Final = 256 << 10
"""Leaves grow to at most this: smaller ones cost more in reads, larger ones are refused by more peers."""


def layers_per_leaf(
    num_layers: int, num_kv_heads: int, head_dim: int, *, block_size: int, dtype: KvDtype, scheme: KvScheme = "none"
) -> int:
    """Give the largest divisor of `num_layers` whose leaf stays within `TARGET_LEAF_BYTES`, at least 1."""
    layer_bytes = leaf_bytes(
        1, block_size, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype, scheme=scheme
    )  # fmt: skip
    fits = (n for n in range(num_layers, 1, -1) if num_layers % n == 0 and n * layer_bytes <= TARGET_LEAF_BYTES)
    return next(fits, 1)


@dataclass(frozen=True, slots=True)
class Size:
    """What a number of tokens takes: leaf payload only, without nodes."""

    tokens: int
    blocks: int
    """Full blocks."""
    leaves: int
    """Leaves of the full blocks."""
    tail_tokens: int
    tail_leaves: int
    total_bytes: int
    """Payload of all leaves, the tail's included."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Shape of one model's KV cache and of its leaves.

    Raises `UnsupportedModel`, naming the field, for a shape that no store could hold: the values may come
    from a foreign model node.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    layers_per_leaf: int
    """Layers in a leaf; the last leaf of a block may hold fewer."""
    dtype: KvDtype
    scheme: KvScheme = "none"

    def __post_init__(self) -> None:
        bounds = {"num_layers": MAX_LAYERS, "num_kv_heads": 1 << 12, "head_dim": 1 << 12,
                  "block_size": MAX_BLOCK_TOKENS, "layers_per_leaf": self.num_layers}  # fmt: skip
        for field, most in bounds.items():
            value = getattr(self, field)
            if not 1 <= value <= most:
                raise UnsupportedModel(f"{field} is {value}, must be 1 to {most}", field=field, got=value)
        if self.scheme != "none" and self.dtype != "f32":
            raise UnsupportedModel(
                f"kv_quant_scheme {self.scheme} with kv_dtype {self.dtype}, must be f32",
                hint="another type would round what the scale says",
                field="kv_quant_scheme",
                got=self.scheme,
            )
        if self.leaf_bytes(0) > MAX_LEAF_BYTES:
            raise UnsupportedModel(
                f"layers_per_leaf {self.layers_per_leaf} makes leaves of {self.leaf_bytes(0)} bytes, "
                f"the most is {MAX_LEAF_BYTES}",
                hint="choose a smaller block size",
                field="layers_per_leaf",
                got=self.layers_per_leaf,
            )

    @classmethod
    def from_model(cls, model: Model) -> Self:
        """Read the shape from a model identity. Raises `UnsupportedModel`."""
        return cls(
            num_layers=model.num_layers,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            block_size=model.block_size,
            layers_per_leaf=model.layers_per_leaf,
            dtype=model.kv_dtype,  # type: ignore[arg-type]  # the node allows exactly these values
            scheme=model.kv_quant_scheme,  # type: ignore[arg-type]  # and these
        )

    @property
    def row_bytes(self) -> int:
        """K, or V, of one token in one layer: a row for each KV head."""
        return self.num_kv_heads * head_row_bytes(self.head_dim, self.dtype, self.scheme)

    @property
    def layer_bytes(self) -> int:
        """K and V of one block in one layer."""
        return 2 * self.block_size * self.row_bytes

    @property
    def bytes_per_token(self) -> int:
        """K and V of one token in all layers."""
        return 2 * self.num_layers * self.row_bytes

    @property
    def block_bytes(self) -> int:
        """K and V of one block in all layers."""
        return self.num_layers * self.layer_bytes

    @property
    def leaves_per_block(self) -> int:
        """Layer groups."""
        return -(-self.num_layers // self.layers_per_leaf)

    @property
    def leaf_layers(self) -> tuple[tuple[int, int], ...]:
        """First layer and number of layers of each group; the last may be smaller."""
        return layer_groups(self.num_layers, self.layers_per_leaf)

    def leaf_bytes(self, group: int) -> int:
        """Size of the leaf of one layer group of a full block."""
        return self.tail_leaf_bytes(group, self.block_size)

    @property
    def leaf_spans(self) -> list[tuple[int, int]]:
        """Where in a full block's bytes its leaves begin and end."""
        ends = list(accumulate(self.leaf_bytes(group) for group in range(self.leaves_per_block)))
        return list(zip([0, *ends], ends, strict=False))

    def tail_leaf_bytes(self, group: int, tokens: int) -> int:
        """Size of a leaf of one layer group with `tokens` rows a layer."""
        return leaf_bytes(
            self.leaf_layers[group][1], tokens,
            num_kv_heads=self.num_kv_heads, head_dim=self.head_dim, dtype=self.dtype, scheme=self.scheme,
        )  # fmt: skip

    def size(self, tokens: int) -> Size:
        """Count blocks, leaves and bytes of `tokens` tokens, exactly."""
        blocks, tail_tokens = divmod(tokens, self.block_size)
        return Size(
            tokens=tokens,
            blocks=blocks,
            leaves=blocks * self.leaves_per_block,
            tail_tokens=tail_tokens,
            tail_leaves=self.leaves_per_block if tail_tokens else 0,
            total_bytes=tokens * self.bytes_per_token,
        )
