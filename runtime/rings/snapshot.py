"""Live rows as bytes, to go on elsewhere without a pool: in logical order, so that no rotation has to travel.

A checkpoint is something else: it is a root over raw blocks, which this never is. What a snapshot claims is checked by
rules that are data, in order, before a byte of it is used; the error names the first rule that fails.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from ...cybergraph.errors import MalformedBytes
from ..models.config_layers import LayerKind
from .plane import Plane
from .ring import Position, Ring

MOST_BYTES: Final = (1 << 63) - 1
_ENCODINGS: Final = {torch.float16: "F16Le", torch.float32: "F32Le", torch.bfloat16: "BF16Le"}


@dataclass(frozen=True, slots=True)
class LayerRows:
    """Rotated K, and V, of the last rows of one layer. Layout: `[rows, kv_heads, head_dim]`, little endian."""

    layer: int
    rows: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a sequence needs to be given the row at `position`."""

    position: int
    tokens: tuple[int, ...]
    encoding: str
    layers: tuple[LayerRows, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a snapshot must fit."""

    kinds: tuple[LayerKind, ...]
    encoding: str
    row_bytes: int
    """K of one token in one layer."""

    def rows(self, layer: int, position: int) -> int:
        """Rows of a layer at a position: all, or those of its window."""
        window = self.kinds[layer].window
        return position if window is None else min(position, window)


@dataclass(frozen=True, slots=True)
class Rule:
    """One condition on a snapshot."""

    name: str
    holds: Callable[[Snapshot, Shape], bool]


RULES: Final = (
    Rule("position", lambda s, _: s.position > 0),
    Rule("tokens", lambda s, _: len(s.tokens) == s.position),
    Rule("encoding", lambda s, shape: s.encoding == shape.encoding),
    Rule("layers", lambda s, shape: [each.layer for each in s.layers] == list(range(len(shape.kinds)))),
    Rule("overflow", lambda s, shape: 2 * s.position * shape.row_bytes * len(shape.kinds) <= MOST_BYTES),
    Rule("rows", lambda s, shape: all(each.rows == shape.rows(each.layer, s.position) for each in s.layers)),
    Rule(
        "bytes",
        lambda s, shape: all(len(e.key) == len(e.value) == e.rows * shape.row_bytes for e in s.layers),
    ),
)


def require_fit(snapshot: Snapshot, shape: Shape) -> None:
    """Check a snapshot. Raises `MalformedBytes` with the first `rule` that it breaks."""
    for rule in RULES:
        if not rule.holds(snapshot, shape):
            raise MalformedBytes(f"snapshot at {snapshot.position} refused by rule {rule.name!r}", rule=rule.name)


def shape_of(planes: Sequence[Plane], kinds: Sequence[LayerKind]) -> Shape:
    """Describe planes, one for each layer, of one element type and size."""
    kv_heads, _, head_dim = planes[0].by_head[0].shape
    return Shape(tuple(kinds), _ENCODINGS[planes[0].dtype], kv_heads * head_dim * planes[0].dtype.itemsize)


def take_snapshot(planes: Sequence[Plane], kinds: Sequence[LayerKind], tokens: Sequence[int]) -> Snapshot:
    """Copy what is needed to go on after `tokens`, the first of which stands at position 0."""
    shape, end = shape_of(planes, kinds), Position(len(tokens))
    layers = []
    for layer, plane in enumerate(planes):
        rows = shape.rows(layer, end)
        key, value = (
            part.transpose(0, 1).contiguous().view(torch.uint8).numpy().tobytes()
            for part in plane.gather(Position(end - rows), end)
        )
        layers.append(LayerRows(layer, rows, key, value))
    return Snapshot(end, tuple(tokens), shape.encoding, tuple(layers))


def restore(snapshot: Snapshot, planes: Sequence[Plane], kinds: Sequence[LayerKind]) -> list[Plane]:
    """Fill planes from a snapshot; each gets the rotation that a sequence built from 0 on has there.

    Raises `MalformedBytes` before a plane is touched.
    """
    require_fit(snapshot, shape_of(planes, kinds))
    filled = []
    for plane, each in zip(planes, snapshot.layers, strict=True):
        kv_heads, _, head_dim = plane.by_head[0].shape
        first = Position(snapshot.position - each.rows)
        key, value = (
            torch.frombuffer(bytearray(part), dtype=plane.dtype).view(each.rows, kv_heads, head_dim).transpose(0, 1)
            for part in (each.key, each.value)
        )
        empty = plane.on(Ring.starting_at(plane.capacity, first))
        filled.append(empty.append_batch(first, key, value, layer=each.layer))
    return filled
