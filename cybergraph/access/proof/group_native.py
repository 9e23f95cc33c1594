"""secp256k1 by `coincurve`, the bindings of libsecp256k1."""

from coincurve import PublicKey

from ..identity import RING_ORDER, RING_PUBLIC_BYTES
from .group import SCALAR_BYTES


class NativeGroup:
    """Multiplication of the base point, through which secrets pass, is constant time in this library.

    Multiplication of other points is not. It sees only `c`, which says nothing about the secret key.
    """

    name = "coincurve"

    def is_point(self, key: bytes) -> bool:  # noqa: D102
        try:
            _point(key)
        except ValueError:
            return False
        return True

    def public_key(self, secret: int) -> bytes:  # noqa: D102
        return PublicKey.from_valid_secret(secret.to_bytes(SCALAR_BYTES, "big")).format()

    def commitment(self, key: bytes, c: int, z: int) -> bytes:  # noqa: D102
        base = PublicKey.from_valid_secret(z.to_bytes(SCALAR_BYTES, "big"))
        return base.combine([_point(key).multiply((RING_ORDER - c).to_bytes(SCALAR_BYTES, "big"))]).format()


def _point(key: bytes) -> PublicKey:
    if len(key) != RING_PUBLIC_BYTES:  # the library also reads the uncompressed forms
        raise ValueError(f"a point takes {RING_PUBLIC_BYTES} bytes, not {len(key)}")
    return PublicKey(key)
