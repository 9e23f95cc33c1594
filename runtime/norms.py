"""Numbers out of leaves, for people to look at: numpy alone, so that a server needs no torch to show them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..cybergraph.cid import Buffer
from ..cybergraph.errors import MalformedNode
from ..cybergraph.leafsize import SCALE_BYTES
from ..cybergraph.nodes import Model
from .geometry import Geometry


def block_norms(model: Model, leaves: Sequence[Buffer]) -> list[list[list[float]]]:
    """Give the root mean square of a block's K and V: [layer][K, V][KV head], over tokens and head dimensions.

    `leaves` are those of one block or tail, lowest layers first. Numbers that are not finite stay so. Raises
    `MalformedNode` for leaves that are not of the model's shape, `UnsupportedModel` for a shape that nobody could hold.
    """
    geometry = Geometry.from_model(model)
    if len(leaves) != geometry.leaves_per_block:
        raise _misfit("leaves", geometry.leaves_per_block, len(leaves))
    measured: list[list[list[float]]] = []
    for leaf, (_, layers) in zip(leaves, geometry.leaf_layers, strict=True):
        token_bytes = 2 * layers * geometry.row_bytes
        tokens, rest = divmod(len(leaf), token_bytes)
        if rest or not 1 <= tokens <= geometry.block_size:
            raise _misfit("bytes of a leaf", geometry.block_size * token_bytes, len(leaf))
        rows = floats(leaf, geometry).reshape(layers, 2, tokens, geometry.num_kv_heads, geometry.head_dim)
        with np.errstate(over="ignore", invalid="ignore"):
            measured += np.sqrt(np.square(rows, dtype=np.float64).mean(axis=(2, 4))).tolist()
    return measured


def floats(leaf: Buffer, geometry: Geometry) -> npt.NDArray[np.float32]:
    """Give the numbers of a leaf, or of any of its rows, as attention reads them, one row after the other."""
    if geometry.scheme != "none":
        stored = np.frombuffer(leaf, np.int8).reshape(-1, geometry.head_dim + SCALE_BYTES)
        scales = np.ascontiguousarray(stored[:, geometry.head_dim :]).view("<f4")
        numbers = stored[:, : geometry.head_dim].astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            numbers *= scales
        return numbers
    dtype = geometry.dtype
    if dtype == "bf16":  # the upper half of a float32
        wide = np.frombuffer(leaf, "<u2").astype(np.uint32)
        np.left_shift(wide, 16, out=wide)
        return wide.view(np.float32)
    return np.frombuffer(leaf, {"f32": "<f4", "f16": "<f2"}[dtype]).astype(np.float32)


def _misfit(what: str, expected: int, got: int) -> MalformedNode:
    return MalformedNode(f"{what}: expected {expected}, got {got}", field="kv", expected=expected, got=got)
