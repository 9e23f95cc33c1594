"""Somebody's keys: one secret seed, and from it a key for each purpose, none of which says anything about another.

What others need is the `PublicIdentity`, as one text that can be mailed: `ckv1…`, with a checksum.
"""

import base64
import hashlib
import secrets
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Self

from cryptography.hazmat.primitives.asymmetric.ec import SECP256K1, derive_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hpke import MLKEM768X25519PrivateKey, MLKEM768X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ..errors import BadKey, BadReference
from .ed25519 import PUBLIC_BYTES, check_public_key

SEED_BYTES: Final = 32
RING_PUBLIC_BYTES: Final = 33
"""A point of secp256k1 in short form."""
PQ_PUBLIC_BYTES: Final = 1184
"""The ML-KEM-768 half; the X25519 half is the same key."""
RING_ORDER: Final = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
TEXT_PREFIX: Final = "ckv1"
FINGERPRINT_CHARS: Final = 24
_CHECK_BYTES: Final = 4
_SHORT, _LONG = b"\x01", b"\x02"
_DIGEST_BYTES: Final = 32
_SHORT_BYTES: Final = 1 + 2 * PUBLIC_BYTES + RING_PUBLIC_BYTES + _DIGEST_BYTES
_FINGERPRINT: Final = b"cyberkv/v1/fingerprint"
MAX_TEXT_CHARS: Final = 4096


@dataclass(frozen=True, slots=True)
class PublicIdentity:
    """The public halves of somebody's keys."""

    signing: bytes
    """Ed25519, 32 bytes."""
    sealing: bytes
    """X25519, 32 bytes."""
    ring: bytes
    """secp256k1, 33 bytes."""
    pq_digest: bytes
    """SHA-256 of the ML-KEM-768 key: it stands for that where the key itself would be too long."""
    pq: bytes | None = None
    """ML-KEM-768, 1,184 bytes, where it was exported."""

    @property
    def fingerprint(self) -> str:
        """24 letters by which people compare keys, the same with and without `pq`.

        96 bits: a key with the 64 bits of somebody else's could be found by trying.
        """
        digest = hashlib.sha256(_FINGERPRINT + self._parts()).hexdigest()
        return "-".join(digest[at : at + 4] for at in range(0, FINGERPRINT_CHARS, 4))

    def __str__(self) -> str:
        data = (_LONG if self.pq else _SHORT) + self._parts() + (self.pq or b"")
        text = base64.b32encode(data + _check(data)).decode().lower().rstrip("=")
        return TEXT_PREFIX + text

    def _parts(self) -> bytes:
        return self.signing + self.sealing + self.ring + self.pq_digest

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form. Raises `BadReference` for no key at all, `BadKey` for one that proves nothing."""
        digits = text.removeprefix(TEXT_PREFIX)
        try:
            data = base64.b32decode(digits.upper() + "=" * (-len(digits) % 8)) if len(text) < MAX_TEXT_CHARS else b""
        except ValueError:
            data = b""
        data, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
        sizes = {_SHORT: _SHORT_BYTES, _LONG: _SHORT_BYTES + PQ_PUBLIC_BYTES}
        if not text.startswith(TEXT_PREFIX) or check != _check(data) or len(data) != sizes.get(data[:1]):
            raise BadReference(
                f"not a public key: {text!r:.60}", hint="`cyberkv key show` prints one, beginning with ckv1"
            )
        signing, sealing = data[1 : 1 + PUBLIC_BYTES], data[1 + PUBLIC_BYTES : 1 + 2 * PUBLIC_BYTES]
        ring, pq = data[1 + 2 * PUBLIC_BYTES : _SHORT_BYTES - _DIGEST_BYTES], data[_SHORT_BYTES:]
        found = cls(signing, sealing, ring, data[_SHORT_BYTES - _DIGEST_BYTES : _SHORT_BYTES], pq or None)
        if str(found) != text or (pq and hashlib.sha256(pq).digest() != found.pq_digest):
            raise BadReference(f"not a public key in its one form: {text!r:.60}")
        check_public_key(signing)
        return found

    def pq_key(self) -> MLKEM768X25519PublicKey:
        """Give the key for wraps that a quantum computer does not open. Raises `BadKey` where there is none."""
        if self.pq is None:
            raise BadKey(
                f"the key {self.fingerprint} has no part that withstands quantum computers",
                hint="its owner prints the long form with `cyberkv key show --pq`", fingerprint=self.fingerprint,
            )  # fmt: skip
        try:
            mlkem = MLKEM768PublicKey.from_public_bytes(self.pq)
        except ValueError as error:
            raise BadKey(
                f"the key {self.fingerprint} has no valid ML-KEM-768 part", fingerprint=self.fingerprint
            ) from error
        return MLKEM768X25519PublicKey(mlkem, X25519PublicKey.from_public_bytes(self.sealing))


class Identity:
    """Somebody's secret keys, never shown."""

    def __init__(self, seed: bytes) -> None:
        """Take 32 secret bytes. Raises `BadKey` for another number."""
        if len(seed) != SEED_BYTES:
            raise BadKey(f"a seed has {SEED_BYTES} bytes, this one {len(seed)}")
        self._seed = seed

    @classmethod
    def new(cls) -> Self:
        """Draw a fresh seed from the system."""
        return cls(secrets.token_bytes(SEED_BYTES))

    def reveal(self) -> bytes:
        """Give the seed, to store it."""
        return self._seed

    @cached_property
    def signing(self) -> Ed25519PrivateKey:
        """Signs grants, roots and answers."""
        return Ed25519PrivateKey.from_private_bytes(self._derive("ed25519", 32))

    @cached_property
    def sealing(self) -> X25519PrivateKey:
        """Opens what was wrapped for its owner."""
        return X25519PrivateKey.from_private_bytes(self._derive("x25519", 32))

    @cached_property
    def pq(self) -> MLKEM768X25519PrivateKey:
        """Opens what was wrapped for both kinds of key at once."""
        return MLKEM768X25519PrivateKey(self._mlkem(), self.sealing)

    @cached_property
    def ring_scalar(self) -> int:
        """Shows membership in a ring without saying whose."""
        # Sixteen bytes more than the order has: the remainder favours no number by more than one in 2^128.
        return int.from_bytes(self._derive("secp256k1", 48), "big") % (RING_ORDER - 1) + 1

    def public(self, *, pq: bool = False) -> PublicIdentity:
        """Give the public halves, the large one only where asked for."""
        return self._public if pq else replace(self._public, pq=None)

    @cached_property
    def _public(self) -> PublicIdentity:
        ring = derive_private_key(self.ring_scalar, SECP256K1()).public_key()
        large = self._mlkem().public_key().public_bytes_raw()
        return PublicIdentity(
            self.signing.public_key().public_bytes_raw(),
            self.sealing.public_key().public_bytes_raw(),
            ring.public_bytes(Encoding.X962, PublicFormat.CompressedPoint),
            hashlib.sha256(large).digest(),
            large,
        )

    def _mlkem(self) -> MLKEM768PrivateKey:
        return MLKEM768PrivateKey.from_seed_bytes(self._derive("ml-kem-768", 64))

    def _derive(self, label: str, size_bytes: int) -> bytes:
        return HKDF(SHA256(), size_bytes, salt=None, info=f"cyberkv/v1/key/{label}".encode()).derive(self._seed)

    def __repr__(self) -> str:
        return f"Identity({self.public().fingerprint})"

    def __reduce__(self) -> str:
        raise TypeError("secret keys are not pickled")


def _check(data: bytes) -> bytes:
    return hashlib.sha256(b"cyberkv/v1/public-key" + data).digest()[:_CHECK_BYTES]
