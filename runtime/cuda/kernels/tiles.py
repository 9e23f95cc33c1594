"""How a kernel is cut for a shape: tile sizes that follow from the shape alone, never from the device or a trial.

Which tile a key falls into decides the order of the sum. So it is fixed here, and nothing is tuned at run time.

>>> from ..support import Attention
>>> attention = Attention(heads=9, kv_heads=3, head_dim=80, page_size=16, dtype="bf16", scale=0.1, rotary_dims=32)
>>> shape = shape_of(attention, decode_cut(attention))
>>> shape.lanes, shape.padded_dim, shape.rotary_half, shape.rest, shape.padded_rest
(16, 128, 16, 48, 64)
"""

from dataclasses import dataclass
from typing import Final

from ..support import Attention

LEAST_SIDE: Final = 16
"""A matrix product on tensor cores has no shorter side."""

NO_WINDOW: Final = 1 << 30
"""A window that holds every position."""

LOG2_E: Final = 1.4426950408889634

MANY_OUTPUTS: Final = 8192
"""From here on, wide tiles are enough programs."""

GROUPED_TILES: Final = 16
"""Tiles of rows that share a tile of weights before the next is read."""

SILU_NUMBERS: Final = 1024
"""Numbers of a row that one program of `silu_mul` computes."""

UNFUSED: Final = {"enable_fp_fusion": False}
"""Products and sums stay apart: which are fused is up to the compiler's version."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Tiles of one kernel."""

    lanes: int
    """Rows of q in one program: query heads of one KV head, of one position or of several."""
    warps: int


def power_of_two(count: int) -> int:
    """Give the least power of two that is at least `count` and a legal side."""
    return max(LEAST_SIDE, 1 << (count - 1).bit_length())


def decode_cut(attention: Attention) -> Cut:
    """Cut the decode: one position a program."""
    heavy = attention.dtype == "f32" and power_of_two(attention.head_dim) > 128
    return Cut(lanes=power_of_two(attention.group), warps=8 if heavy else 4)


def prefill_cut(attention: Attention) -> Cut:
    """Cut the prefill: as many rows as registers hold, outputs being kept twice, for a panel and for all before."""
    half, long = attention.dtype != "f32", power_of_two(attention.head_dim) > 128
    fitting = 64 if half and not long else 16 if long and not half else 32
    return Cut(lanes=max(fitting, power_of_two(attention.group)), warps=8)


def tile_keys(attention: Attention) -> int:
    """Keys of one tile: few enough that K and V of two tiles, with what turns them, fit on chip everywhere.

    Without tensor cores the factors of a product lie in registers, so tiles of float32 are smaller still.
    """
    side = power_of_two(attention.head_dim)
    return max(LEAST_SIDE, (8 << 10) // (4 * side)) if attention.dtype == "f32" else min(64, (16 << 10) // (2 * side))


def tile_rows(attention: Attention) -> int:
    """Positions in one program of the prefill."""
    return prefill_cut(attention).lanes // attention.group


def chunk_tiles(attention: Attention, rows: int) -> int:
    """Programs that a chunk of rows takes of each KV head: one that begins inside a tile may reach into one more."""
    return (rows - 1) // tile_rows(attention) + 2


@dataclass(frozen=True, slots=True)
class Shape:
    """What a kernel of attention is compiled for, beside the element type: one constant, whose fields it reads."""

    group: int
    lanes: int
    tile_keys: int
    page_size: int
    head_dim: int
    padded_dim: int
    rotary_half: int
    padded_half: int
    rest: int
    """Numbers of a row that do not turn."""
    padded_rest: int
    interleaved: bool
    rotated: bool
    capped: bool


def shape_of(attention: Attention, cut: Cut) -> Shape:
    """Give what a kernel is compiled for."""
    a = attention
    rest = a.head_dim - a.rotary_dims
    return Shape(
        group=a.group,
        lanes=cut.lanes,
        tile_keys=tile_keys(a),
        page_size=a.page_size,
        head_dim=a.head_dim,
        padded_dim=power_of_two(a.head_dim),
        rotary_half=a.rotary_dims // 2,
        padded_half=power_of_two(max(1, a.rotary_dims // 2)),
        rest=rest,
        padded_rest=power_of_two(max(1, rest)),
        interleaved=a.interleaved,
        rotated=a.rotated,
        capped=a.softcap is not None,
    )


def options(cut: Cut, capability: int | None) -> dict[str, int | bool]:
    """Give the compiler's options. `capability` as in `unsupported`: before 80 nothing is loaded ahead."""
    ahead = capability is None or capability >= 80
    return {"num_warps": cut.warps, "num_stages": 2 if ahead else 1, **UNFUSED}


def factors(attention: Attention) -> tuple[float, float]:
    """Give the factors on logits before and after the cap; exponents are to base 2."""
    if attention.softcap is None:
        return attention.scale * LOG2_E, 1.0
    return attention.scale / attention.softcap, attention.softcap * LOG2_E


def window(attention: Attention) -> int:
    """Give the keys a row sees as a number."""
    return NO_WINDOW if attention.window is None else attention.window


@dataclass(frozen=True, slots=True)
class LinearCut:
    """Tiles of a product of rows and a weight matrix: sides, and how it is compiled."""

    tile_rows: int
    tile_outputs: int
    tile_inputs: int
    stages: int
    """Tiles of inputs on chip at a time: one is multiplied while the others come."""

    @property
    def constants(self) -> dict[str, int]:
        """What the kernel is compiled for, beside the sizes of the matrix."""
        return {
            "tile_rows": self.tile_rows,
            "tile_outputs": self.tile_outputs,
            "tile_inputs": self.tile_inputs,
            "grouped": GROUPED_TILES,
        }

    def options(self, capability: int | None) -> dict[str, int | bool]:
        """Give the compiler's options, as `options` does; without `capability` the device has little room on chip."""
        stages = 2 if capability is None else self.stages if capability >= 80 else 1
        return {"num_warps": 4, "num_stages": stages, **UNFUSED}


def linear_cut(dtype: str, outputs: int) -> LinearCut:
    """Cut a product, whatever the number of rows.

    A tile of many rows is work for nothing where there is one; one of few rows reads the weights again and again where
    there are many. 64 rows are what the tensor cores multiply while the weights come from memory. Fewer outputs make
    more programs, which a small matrix needs to keep every part of the device reading.
    """
    if dtype == "f32":
        return LinearCut(tile_rows=16, tile_outputs=64, tile_inputs=32, stages=3)
    wide = outputs >= MANY_OUTPUTS
    return LinearCut(tile_rows=64, tile_outputs=128 if wide else 64, tile_inputs=64, stages=3 if wide else 4)


def norm_warps(columns: int) -> int:
    """Warps of the program that reduces a row."""
    return min(16, max(1, power_of_two(columns) // 512))
