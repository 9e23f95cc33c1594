"""Keys and values that are no finite numbers, from which no computation may go on.

Bytes with such numbers hash to their CID as well as any others. So what was not computed here is looked at when its
rows are loaded, and a block with one counts as absent; what is computed here is looked at before it gets a name.

>>> shape = Geometry(2, 1, 4, block_size=2, layers_per_leaf=2, dtype="f32")
>>> numbers = np.zeros((2, 2, 2, 1, 4), "<f4")
>>> first_wrong(shape, 0, numbers.data) is None
True
>>> numbers[1, 0, 1, 0, 3] = float("-inf")
>>> print(first_wrong(shape, 0, numbers.data))
the key of layer 1, token 1, KV head 0 is -inf
"""

from typing import Final, NamedTuple

import numpy as np

from ..cybergraph.cid import Buffer, Cid
from ..cybergraph.errors import NotFinite
from ..cybergraph.leafsize import SCALE_BYTES
from .geometry import Geometry
from .norms import floats

_NOT_FINITE: Final = {
    "f32": ("4", 0x7F80_0000, 0xFF80_0000),
    "bf16": ("2", 0x7F80, 0xFF80),
    "f16": ("2", 0x7C00, 0xFC00),
}
"""Bytes of a number, and the bits of both infinities, as integers. Those of what is no number are greater."""
_LARGEST_SCALE: Final = np.float32(np.finfo(np.float32).max / 128)
"""Finite, whichever integer of one byte it is the scale of."""


class Wrong(NamedTuple):
    """Where a number is not finite."""

    field: str
    """`key` or `value`."""
    layer: int
    token: int
    """Of the block or tail."""
    head: int
    """KV head."""
    number: str
    """`nan`, `inf` or `-inf`."""

    def __str__(self) -> str:
        return f"the {self.field} of layer {self.layer}, token {self.token}, KV head {self.head} is {self.number}"


def first_wrong(geometry: Geometry, group: int, leaf: Buffer) -> Wrong | None:
    """Find the first number that is not finite in a leaf of layer group `group`, of a full block or of a tail."""
    if _is_sound(geometry, leaf):
        return None
    numbers = floats(leaf, geometry)
    wrong = ~np.isfinite(numbers.ravel())
    if not wrong.any():  # a large scale of small integers
        return None
    first, layers = geometry.leaf_layers[group]
    at = int(wrong.argmax())
    shape = (layers, 2, -1, geometry.num_kv_heads, geometry.head_dim)
    layer, part, token, head, _ = map(int, np.unravel_index(at, numbers.reshape(shape).shape))
    return Wrong(("key", "value")[part], first + layer, token, head, str(numbers.ravel()[at]))


def _is_sound(geometry: Geometry, leaf: Buffer) -> bool:
    """Say quickly whether all numbers are finite; False may be wrong."""
    if geometry.scheme == "none":
        size, infinity, below_zero = _NOT_FINITE[geometry.dtype]
        # As integers, the greatest of those without a sign and of those with one: two passes, and no copy.
        signed, unsigned = (np.frombuffer(leaf, f"<{kind}{size}") for kind in "iu")
        return bool(signed.max() < infinity and unsigned.max() < below_zero)
    rows = np.frombuffer(leaf, np.int8).reshape(-1, geometry.head_dim + SCALE_BYTES)
    scales = np.ascontiguousarray(rows[:, geometry.head_dim :]).view("<f4")
    return bool((np.abs(scales) <= _LARGEST_SCALE).all())


def require_finite(geometry: Geometry, group: int, cid: Cid, leaf: Buffer) -> None:
    """Check the numbers of a leaf. Raises `NotFinite`."""
    if (wrong := first_wrong(geometry, group, leaf)) is not None:
        raise NotFinite(
            f"leaf {cid} cannot be gone on from: {wrong}", hint="its text has to be computed anew, here or elsewhere",
            cid=str(cid), field=wrong.field, expected="finite", got=wrong.number, layer=wrong.layer, token=wrong.token,
            head=wrong.head,
        )  # fmt: skip
