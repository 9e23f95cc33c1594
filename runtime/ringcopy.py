"""The rings of one live sequence: one plane for each layer with a window.

Everything is read in logical order. Chunks read a copy that is made before their rows go in, so a row is never
overwritten before it was attended to. Single rows read in place where the span of their panel fits: it is laid out from
the start of the memory on when the first of them comes, once in a panel.
"""

from torch import Tensor

from .hot import HotMemory
from .rings.plane import Plane
from .rings.ring import Position, Ring, Slot


class RingCopy:
    """Rotated K, and V, of the layers with a window. The same interface as the full copy: `attention.source`."""

    def __init__(self, memory: HotMemory) -> None:
        self._memory = memory
        self._planes: dict[int, Plane] = {}
        self._laid: dict[int, tuple[int, int]] = {}
        """Span of each layer that lies at the start of its memory, cleared where no row is held."""

    @property
    def bytes(self) -> int:
        """Memory of all planes, whether touched or not."""
        return sum(plane.bytes for plane in self._planes.values())

    def plane(self, layer: int) -> Plane:
        """Give a layer's plane; all are made when the first is asked for."""
        if not self._planes:
            self._planes = self._memory.take_planes()
        return self._planes[layer]

    def extended(
        self, layer: int, start: int, k: Tensor, v: Tensor, rows: int, span: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """Keep the first `rows` rows and give what attention over `span` needs, whatever they push out.

        Raises `CacheDiscontinuity` where the rows do not follow.
        """
        first, last = span
        if k.shape[1] == 1 and rows == 1 and self._lay(layer, Position(first), Position(last)):
            self._append_row(layer, Position(start), k, v)
            keys, values = self._planes[layer].by_head
            return keys[:, : last - first], values[:, : last - first]
        keys, values = k.new_zeros(2, k.shape[0], last - first, k.shape[2])
        self._gather_held(layer, first, start, keys, values)
        keys[:, start - first : start - first + k.shape[1]] = k
        values[:, start - first : start - first + k.shape[1]] = v
        self.keep(layer, start, k[:, :rows], v[:, :rows])
        return keys, values

    def keys_values(self, layer: int, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Copy K and V of positions `first` to `last` (excluded); zeros stand where no row is held."""
        plane = self.plane(layer)
        keys, values = plane.key.new_zeros(2, plane.by_head[0].shape[0], last - first, plane.key.shape[-1])
        self._gather_held(layer, first, last, keys, values)
        return keys, values

    def keep(self, layer: int, start: int, k: Tensor, v: Tensor) -> None:
        """Append rows. Shapes: k and v [kv_heads, rows, head_dim]. Raises `CacheDiscontinuity`."""
        self._laid.pop(layer, None)
        plane = self.plane(layer)
        batch = plane.ring.append_batch(Position(start), k.shape[1], layer=layer)
        # Stopped between these lines, the plane describes fewer rows than there are, never others.
        self._planes[layer] = plane.on(batch.ring.upto(Position(start)))
        plane.put_batch(batch, k, v)
        self._planes[layer] = plane.on(batch.ring)

    def cut_to(self, layer: int, first: int, end: int) -> bool:
        """Forget a layer's rows from `end` on, and say whether those from `first` to `end` are all here."""
        plane = self.plane(layer)
        if plane.ring.end > end:
            self._laid.pop(layer, None)  # what is forgotten may be NaN, and would come through any mask
            self._planes[layer] = plane = plane.on(plane.ring.upto(Position(end)))
        return plane.ring.end == end and plane.origin_logical <= first

    def restart(self, layer: int, position: int) -> None:
        """Forget a layer's rows; the next one stands at `position`."""
        self._laid.pop(layer, None)
        plane = self.plane(layer)
        self._planes[layer] = plane.on(Ring.starting_at(plane.capacity, Position(position)))

    def release(self) -> None:
        """Give the memory back."""
        if self._planes:
            self._memory.give_back_planes(self._planes)
            self._planes, self._laid = {}, {}

    def _append_row(self, layer: int, position: Position, k: Tensor, v: Tensor) -> None:
        plane = self.plane(layer)
        ring, slot = plane.ring.append(position, layer=layer)
        self._planes[layer] = plane.on(ring.upto(position))
        plane.put(slot, k[:, 0], v[:, 0])
        self._planes[layer] = plane.on(ring)

    def _lay(self, layer: int, first: Position, last: Position) -> bool:
        """Have positions `first` to `last` (excluded) begin at the start of a layer's memory, if they fit."""
        plane = self.plane(layer)
        if self._laid.get(layer) == (first, last):
            return True
        if last - first > plane.capacity:
            return False
        keys, values = self.keys_values(layer, first, last)
        held = Position(max(first, plane.origin_logical))
        ring = Ring(plane.capacity, 0, held, Slot(held - first))
        # Stopped between these lines, the plane describes nothing, and is made again from the pool.
        self._planes[layer] = plane.on(ring)
        by_head = plane.by_head
        by_head[0][:, : last - first], by_head[1][:, : last - first] = keys, values
        self._planes[layer] = plane.on(Ring(plane.capacity, plane.ring.end - held, held, Slot(held - first)))
        self._laid[layer] = (first, last)
        return True

    def _gather_held(self, layer: int, first: int, last: int, keys: Tensor, values: Tensor) -> None:
        plane = self.plane(layer)
        low, high = Position(max(first, plane.origin_logical)), Position(min(last, plane.ring.end))
        if low < high:
            here = slice(low - first, high - first)
            plane.gather_into(low, high, keys[:, here], values[:, here])
