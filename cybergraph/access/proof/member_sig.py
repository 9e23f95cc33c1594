"""`member-sig/ed25519/1`: a signature by a member's own key. It hides nothing: for askers that must know who read."""

from typing import Final

from ..ed25519 import PUBLIC_BYTES, SIGNATURE_BYTES
from .challenge import Challenge
from .scheme import Hides, Terms, Verdict, proven, statement_of, unproven
from .signing import fits, public_key, sign


class MemberSig:
    """Secret: the 32-byte seed of a member's Ed25519 key. A proof is the public key and a signature, 96 bytes.

    The roster is the asker's own: those who answer neither need it nor learn it.
    """

    id: Final = "member-sig/ed25519/1"
    hides: Final[Hides] = "nothing"
    max_proof_bytes: Final = PUBLIC_BYTES + SIGNATURE_BYTES

    def statement(self, challenge: Challenge, terms: Terms) -> bytes:  # noqa: ARG002, D102
        return statement_of(self.id, challenge, b"")

    def prove(self, challenge: Challenge, terms: Terms, secret: bytes) -> bytes:  # noqa: D102
        return public_key(secret) + sign(secret, self.statement(challenge, terms))

    def verify(self, challenge: Challenge, terms: Terms, proof: bytes) -> Verdict:  # noqa: D102
        key, signature = proof[:PUBLIC_BYTES], proof[PUBLIC_BYTES:]
        if not fits(key, signature, self.statement(challenge, terms)):
            return unproven("bad-proof")
        if key not in terms.roster:
            return unproven("not-a-member")
        return proven(f"member:{key.hex()}")
