"""What attention reads: rotated K, and V, by position, wherever the rows lie."""

from typing import Protocol

from torch import Tensor


class KeyValueSource(Protocol):
    """A full copy or a ring. Positions are logical; what comes back is in logical order and finite everywhere."""

    @property
    def bytes(self) -> int:
        """Memory held."""

    def keys_values(self, layer: int, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Give K and V from `first` to `last` (excluded) or beyond. Shapes: [kv_heads, keys, head_dim].

        The result may be a view, good until the next call that writes. What no row was written to is arbitrary.
        """

    def keep(self, layer: int, start: int, k: Tensor, v: Tensor) -> None:
        """Take rows that stand at `start` and after. Shapes: k and v [kv_heads, rows, head_dim]."""

    def extended(
        self, layer: int, start: int, k: Tensor, v: Tensor, rows: int, span: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """Take rows, of which `rows` are real and the others padding, and give `keys_values` of `span` with them."""

    def release(self) -> None:
        """Give the memory back; the rows are lost."""
