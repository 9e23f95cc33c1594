"""Ed25519 from 32-byte seeds, for the two schemes that sign."""

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ...errors import BadKey, BadSignature
from ..ed25519 import verify


def public_key(seed: bytes) -> bytes:
    """Give the 32-byte public key of a seed."""
    return _private(seed).public_key().public_bytes_raw()


def sign(seed: bytes, statement: bytes) -> bytes:
    """Sign: 64 bytes, the same every time."""
    return _private(seed).sign(statement)


def fits(public: bytes, signature: bytes, statement: bytes) -> bool:
    """Tell whether a signature holds under a key of full order."""
    try:
        verify(public, signature, statement, "proof")
    except (BadSignature, BadKey):
        return False
    return True


def _private(seed: bytes) -> Ed25519PrivateKey:
    try:
        return Ed25519PrivateKey.from_private_bytes(seed)
    except ValueError as error:
        raise BadKey(f"a seed has 32 bytes, this one {len(seed)}") from error
