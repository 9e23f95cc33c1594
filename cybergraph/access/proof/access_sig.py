"""`access-sig/ed25519/1`: a signature by the access key, which is derived from the content key.

All readers of an epoch share the key, so a proof shows that one of them answered and nothing about which. A
reader who was dropped does not have the key of the next epoch.
"""

import hmac
from typing import Final

from ..ed25519 import SIGNATURE_BYTES
from .challenge import Challenge
from .scheme import Hides, Terms, Verdict, proven, rejected, statement_of, unproven
from .signing import fits, public_key, sign


class AccessSig:
    """The default scheme. Secret: the 32-byte access seed of root and epoch. A proof takes 64 bytes."""

    id: Final = "access-sig/ed25519/1"
    hides: Final[Hides] = "reader-in-group"
    max_proof_bytes: Final = SIGNATURE_BYTES

    def statement(self, challenge: Challenge, terms: Terms) -> bytes:  # noqa: D102
        return statement_of(self.id, challenge, terms.access_key)

    def prove(self, challenge: Challenge, terms: Terms, secret: bytes) -> bytes:  # noqa: D102
        if not hmac.compare_digest(public_key(secret), terms.access_key):
            raise rejected(self.id, "wrong-key")
        return sign(secret, self.statement(challenge, terms))

    def verify(self, challenge: Challenge, terms: Terms, proof: bytes) -> Verdict:  # noqa: D102
        if not fits(terms.access_key, proof, self.statement(challenge, terms)):
            return unproven("bad-proof")
        return proven("holds-access-key")
