"""K and V of a block as a small heat map: a table of numbers, shaded."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final, NamedTuple

from ...cid import Cid
from ...leafsize import layer_groups, leaf_bytes
from ...nodes import Block, Model
from .cache import Cache
from .lookups import NormsOf
from .reader import CANNOT_READ, Reader, why

SHADES: Final = 8
MOST_CELLS: Final = 768
"""More than that, and the heads of a layer are put together."""
MOST_LAYERS: Final = 128
MOST_LEAF_BYTES: Final = 16 << 20
"""Leaves of one block that are read for a page."""
_MOST_SPOTS: Final = 1 << 16


class Spot(NamedTuple):
    """One number and its shade, from 0 to `SHADES` - 1."""

    text: str
    shade: int


@dataclass(frozen=True)
class Heat:
    """The table, or why there is none."""

    columns: tuple[str, ...] = ()
    """`K 0`, `K 1`, …, `V 0`, …; or `K` and `V`."""
    rows: tuple[tuple[Spot, ...], ...] = ()
    """One a layer."""
    more_layers: int = 0
    trouble: str = ""


class Heats:
    """Maps of blocks, remembered. Leaves of one block are read at a time, however many pages are asked for."""

    def __init__(self, reader: Reader, norms: NormsOf | None) -> None:
        self._reader = reader
        self._norms = norms
        self._held = Cache[Cid, Heat](_MOST_SPOTS)
        self._turn = Lock()

    def of(self, cid: Cid, block: Block, model: Model | None) -> Heat:
        """Measure a block, as far as its leaves are here and are what the model says."""
        if model is None:
            return Heat(trouble="the model's identity is not here, so the leaves cannot be read as numbers")
        norms, content, sizes = self._norms, self._reader.content, _sizes(model, block)
        if [self._reader.size_bytes(leaf) for leaf in block.kv] != sizes:
            return Heat(trouble="not all leaves are here with the size that the model says")
        if norms is None:
            return Heat(trouble="this server does not measure leaves")
        if sum(sizes) > MOST_LEAF_BYTES:
            return Heat(trouble=f"the block has more than {MOST_LEAF_BYTES >> 20} MiB of leaves")

        def measure() -> Heat:
            with self._turn:
                return table(norms(model, [content.get(leaf) for leaf in block.kv]))

        try:
            return self._held.get(cid, measure, lambda heat: len(heat.rows) * len(heat.columns))
        except CANNOT_READ as error:
            return Heat(trouble=f"a leaf is {why(error)}")


def _sizes(model: Model, block: Block) -> list[int]:
    return [
        leaf_bytes(
            layers,
            len(block.tokens),
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            dtype=model.kv_dtype,
            scheme=model.kv_quant_scheme,
        )
        for _, layers in leaf_layers(model)
    ]


def leaf_layers(model: Model) -> tuple[tuple[int, int], ...]:
    """Give first layer and number of layers of each leaf of a block."""
    return layer_groups(model.num_layers, model.layers_per_leaf)


def table(measured: Sequence[Sequence[Sequence[float]]]) -> Heat:
    """Shade numbers, [layer][K, V][head]: K among K and V among V, for their sizes differ."""
    heads = len(measured[0][0])
    if len(measured) * 2 * heads > MOST_CELLS:
        measured = [[[_together(part)] for part in layer] for layer in measured]
        heads = 1
    columns = tuple(f"{part} {head}" if heads > 1 else part for part in "KV" for head in range(heads))
    shown = measured[:MOST_LAYERS]
    scales = [_scale([value for layer in shown for value in layer[part]]) for part in range(2)]
    rows = tuple(tuple(_spot(value, *scales[part]) for part in range(2) for value in layer[part]) for layer in shown)
    return Heat(columns, rows, more_layers=len(measured) - len(shown))


def _together(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))


def _scale(values: Sequence[float]) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)]
    return (min(finite), max(finite)) if finite else (0.0, 0.0)


def _spot(value: float, least: float, most: float) -> Spot:
    if not math.isfinite(value):
        return Spot(str(value), SHADES - 1)
    share = (value - least) / (most - least) if most > least else 0.0
    return Spot(f"{value:.3g}", min(int(share * SHADES), SHADES - 1))
