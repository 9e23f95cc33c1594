"""The group secp256k1, as much of it as ring proofs need, by whichever library is here.

Points travel in compressed form, 33 bytes; scalars are integers below the order of the group. Both libraries
give the same bytes for the same input and refuse the same input.
"""

from typing import Final, Protocol

SCALAR_BYTES: Final = 32


class Group(Protocol):
    """What a library does for ring proofs."""

    @property
    def name(self) -> str:
        """Name of the library."""

    def is_point(self, key: bytes) -> bool:
        """Tell whether `key` is the compressed form of a point other than the neutral one."""

    def public_key(self, secret: int) -> bytes:
        """Multiply the base point by `secret`, which must be above zero and below the order."""

    def commitment(self, key: bytes, c: int, z: int) -> bytes:
        """Compute z*G - c*key for scalars above zero and below the order.

        Raises `ValueError` where `key` is no point or the result is the neutral one, which has no compressed form.
        """


def native_or_plain() -> Group:
    """Give `coincurve` where it is installed, else the slower `py_ecc`, which is not constant time."""
    try:
        from .group_native import NativeGroup
    except ImportError:
        from .group_plain import PlainGroup

        return PlainGroup()
    return NativeGroup()
