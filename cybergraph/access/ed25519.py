"""Ed25519 signatures, refusing the public keys for which anybody can sign.

The library accepts public keys of small order: with the neutral point as key, one fixed signature fits every message.
It accepts encodings of numbers above the field's size as well. Both are refused here.
"""

from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from ..errors import BadKey, BadSignature

PUBLIC_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
_FIELD: Final = 2**255 - 19
_Y_MASK: Final = 2**255 - 1
_ORDER_8: Final = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_SMALL_ORDER_Y: Final = frozenset({0, 1, _FIELD - 1, _ORDER_8, _FIELD - _ORDER_8})
"""y of the eight points whose order divides the cofactor; the sign bit gives the rest of them."""


def check_public_key(public: bytes) -> None:
    """Raise `BadKey` for what is no public key of full order in its one encoding."""
    y = int.from_bytes(public, "little") & _Y_MASK
    if len(public) != PUBLIC_BYTES or y >= _FIELD or y in _SMALL_ORDER_Y:
        raise BadKey("this Ed25519 key proves nothing: it is of small order, or not in its one form", got=public.hex())


def verify(public: bytes, signature: bytes, message: bytes, noun: str) -> None:
    """Check a signature. Raises `BadKey`, and `BadSignature` that calls what was signed `noun`."""
    check_public_key(public)
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        raise BadSignature(f"the signature of this {noun} is not by the key it names", noun=noun) from None
