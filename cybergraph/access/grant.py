"""Giving access: wrap a content key for some readers, sign that, and open it again.

A grant names no reader. It holds a power of two of wraps in random order, some of them for keys that nobody has, and a
reader tries its key on every one. Each wrap is bound to issuer, lineage, epoch, root and commitment: copied into
another grant it does not open.
"""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ec import SECP256K1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)

from ..cid import Cid
from ..errors import AuthFailed, BadKey, LimitExceeded, MalformedNode, NotARecipient
from ..limits import MAX_NODE_BYTES, MAX_WRAPS
from ..nodes import UNSIGNED, Grant, Sealed
from .contentkey import KEY_BYTES, ContentKey, framed
from .ed25519 import check_public_key, verify
from .identity import Identity, PublicIdentity

Kem = Literal["x25519", "mlkem768-x25519"]
_SUITES: Final[dict[str, Suite]] = {
    "x25519": Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305),
    "mlkem768-x25519": Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305),
}
WRAP_BYTES: Final[dict[str, int]] = {"x25519": 80, "mlkem768-x25519": 1168}


def make_grant(
    issuer: Identity,
    key: ContentKey,
    readers: Sequence[PublicIdentity],
    *,
    lineage: bytes,
    epoch: int,
    root: Cid,
    alg: int,
    prev: Cid | None = None,
    ring: Cid | None = None,
    kem: Kem = "x25519",
) -> Grant:
    """Wrap `key` for the issuer and every reader, and sign.

    `root` is the sealed page table. Raises `BadKey` for a reader's key that cannot be used, `LimitExceeded` for more
    readers than a grant holds.
    """
    own = issuer.public(pq=kem != "x25519")
    distinct = {reader.sealing: reader for reader in (*readers, own)}
    if len(distinct) > MAX_WRAPS:
        raise LimitExceeded(f"{len(distinct)} readers, a grant holds {MAX_WRAPS}", readers=len(distinct))
    access = Ed25519PrivateKey.from_private_bytes(key.access_seed(root)).public_key().public_bytes_raw()
    grant = Grant(
        issuer=own.signing, lineage=lineage, epoch=epoch, root=root, prev=prev, alg=alg,
        commitment=key.commitment(own.signing, lineage, epoch), access=access, ring=ring, kem=kem, wraps=(),
        signature=UNSIGNED,
    )  # fmt: skip
    info, suite = _info(grant), _SUITES[kem]
    wraps = [_wrap(suite, key.reveal(), _public(reader, kem), reader.fingerprint, info) for reader in distinct.values()]
    spare = (1 << (len(wraps) - 1).bit_length()) - len(wraps)
    wraps += [_wrap(suite, secrets.token_bytes(KEY_BYTES), _nobody(kem), "", info) for _ in range(spare)]
    secrets.SystemRandom().shuffle(wraps)
    grant = replace(grant, wraps=tuple(wraps))
    body = grant.body()
    if len(body) > MAX_NODE_BYTES:
        raise LimitExceeded(
            f"{len(distinct)} readers with keys of this kind make a grant of {len(body)} bytes, limit {MAX_NODE_BYTES}",
            hint="publish for fewer at a time, or without --pq", readers=len(distinct), size_bytes=len(body),
        )  # fmt: skip
    return replace(grant, signature=issuer.signing.sign(body))


def check_reader(reader: PublicIdentity, kem: Kem) -> None:
    """Check that keys can be wrapped for somebody, before anything is done for them. Raises `BadKey`."""
    _wrap(_SUITES[kem], bytes(KEY_BYTES), _public(reader, kem), reader.fingerprint, b"")
    try:
        EllipticCurvePublicKey.from_encoded_point(SECP256K1(), reader.ring)
    except ValueError as error:
        raise BadKey(f"the key {reader.fingerprint} has no valid ring part", fingerprint=reader.fingerprint) from error


def check_grant(grant: Grant) -> None:
    """Check everything about a grant that needs no secret. Raises `BadKey`, `BadSignature`, `MalformedNode`."""
    verify(grant.issuer, grant.signature, grant.body(), "grant")
    check_public_key(grant.access)
    count = len(grant.wraps)
    if count & (count - 1) or any(len(wrap) != WRAP_BYTES[grant.kem] for wrap in grant.wraps):
        raise MalformedNode("a grant holds a power of two of wraps, all of the size of its kind", field="wraps")


def check_grant_of(sealed: Sealed, grant: Grant) -> None:
    """Check a grant, and that it was signed for this conversation. Raises as `check_grant`, and `AuthFailed`."""
    check_grant(grant)
    if (grant.root, grant.lineage, grant.epoch, grant.alg, grant.commitment) != (
        sealed.manifest, sealed.lineage, sealed.epoch, sealed.alg, sealed.commitment,
    ):  # fmt: skip
        raise AuthFailed("this grant was signed for another sealed conversation", cid=str(sealed.cid()))


def open_grant(grant: Grant, reader: Identity) -> ContentKey:
    """Check a grant and give the content key that one of its wraps holds for `reader`.

    Every wrap is tried, whichever opens, so that the time says nothing about which. Raises as `check_grant`,
    `NotARecipient`, and `AuthFailed` where the issuer wrapped another key than the one the grant commits to.
    """
    check_grant(grant)
    info, suite = _info(grant), _SUITES[grant.kem]
    private = reader.sealing if grant.kem == "x25519" else reader.pq
    opened = [secret for wrap in grant.wraps if (secret := _unwrap(suite, wrap, private, info)) is not None]
    if not opened:
        raise NotARecipient(
            f"no wrap of this grant is for the key {reader.public().fingerprint}",
            hint="ask who published it to `cyberkv grant add` your key; after a revocation only earlier epochs open",
            fingerprint=reader.public().fingerprint, epoch=grant.epoch,
        )  # fmt: skip
    key = ContentKey(opened[0])
    if len(opened) > 1 or not commits(grant, key):
        raise AuthFailed("the issuer of this grant gives different readers different keys", epoch=grant.epoch)
    return key


def commits(grant: Grant, key: ContentKey) -> bool:
    """Say whether a grant is about this content key."""
    access = Ed25519PrivateKey.from_private_bytes(key.access_seed(grant.root)).public_key().public_bytes_raw()
    return key.commitment(grant.issuer, grant.lineage, grant.epoch) == grant.commitment and access == grant.access


def _info(grant: Grant) -> bytes:
    epoch = grant.epoch.to_bytes(8, "big")
    context = framed(grant.issuer, grant.lineage) + epoch + framed(grant.root, grant.commitment, grant.access)
    return b"cyberkv/grant/v1" + context


def _public(reader: PublicIdentity, kem: Kem) -> X25519PublicKey | MLKEM768X25519PublicKey:
    return X25519PublicKey.from_public_bytes(reader.sealing) if kem == "x25519" else reader.pq_key()


def _nobody(kem: Kem) -> X25519PublicKey | MLKEM768X25519PublicKey:
    one = X25519PrivateKey.generate()
    if kem == "x25519":
        return one.public_key()
    return MLKEM768X25519PublicKey(MLKEM768PrivateKey.generate().public_key(), one.public_key())


def _wrap(
    suite: Suite, secret: bytes, public: X25519PublicKey | MLKEM768X25519PublicKey, name: str, info: bytes
) -> bytes:
    try:
        return suite.encrypt(secret, public, info)
    except ValueError as error:  # a point of low order: the shared secret would be known to all
        raise BadKey(f"nothing can be wrapped for the key {name}: it is of low order", fingerprint=name) from error


def _unwrap(
    suite: Suite, wrap: bytes, private: X25519PrivateKey | MLKEM768X25519PrivateKey, info: bytes
) -> bytes | None:
    try:
        secret = suite.decrypt(wrap, private, info)
    except (InvalidTag, ValueError):
        return None
    return secret if len(secret) == KEY_BYTES else None
