"""secp256k1 by `py_ecc`, in plain Python: for machines without `coincurve`. Its time depends on what it computes."""

import sys
from typing import TYPE_CHECKING, Final

from ..identity import RING_ORDER, RING_PUBLIC_BYTES

_depth = sys.getrecursionlimit()
from py_ecc.secp256k1.secp256k1 import (  # noqa: E402
    G,
    P,
    from_jacobian,
    jacobian_add,
    jacobian_double,
    to_jacobian,
)

# Importing it lifts the limit for the whole process, where other decoders count on it.
sys.setrecursionlimit(_depth)

if TYPE_CHECKING:
    from py_ecc.typing import PlainPoint2D, PlainPoint3D

_CURVE_B: Final = 7
_NEUTRAL: Final = (0, 0, 1)
_BASE: Final = to_jacobian(G)


class PlainGroup:
    """Two multiplications share their doublings."""

    name = "py_ecc"

    def is_point(self, key: bytes) -> bool:  # noqa: D102
        try:
            _point(key)
        except ValueError:
            return False
        return True

    def public_key(self, secret: int) -> bytes:  # noqa: D102
        return _compressed(_sum_of_products(_BASE, secret, _NEUTRAL, 0))

    def commitment(self, key: bytes, c: int, z: int) -> bytes:  # noqa: D102
        return _compressed(_sum_of_products(_BASE, z, to_jacobian(_point(key)), RING_ORDER - c))


def _point(key: bytes) -> "PlainPoint2D":
    x = int.from_bytes(key[1:], "big")
    if len(key) != RING_PUBLIC_BYTES or key[0] not in (2, 3) or x >= P:
        raise ValueError("not a compressed point")
    square = (x * x * x + _CURVE_B) % P
    y = pow(square, (P + 1) // 4, P)
    if y * y % P != square:
        raise ValueError("no point of the curve has this x")
    return x, y if y & 1 == key[0] & 1 else P - y


def _sum_of_products(a: "PlainPoint3D", times_a: int, b: "PlainPoint3D", times_b: int) -> "PlainPoint3D":
    choices = (_NEUTRAL, a, b, jacobian_add(a, b))
    total = _NEUTRAL
    for bit in reversed(range(RING_ORDER.bit_length())):
        total = jacobian_add(jacobian_double(total), choices[times_a >> bit & 1 | (times_b >> bit & 1) << 1])
    return total


def _compressed(point: "PlainPoint3D") -> bytes:
    if point[1] == 0:
        raise ValueError("the neutral point has no compressed form")
    x, y = from_jacobian(point)
    return bytes((2 | y & 1,)) + x.to_bytes(RING_PUBLIC_BYTES - 1, "big")
