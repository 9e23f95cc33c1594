"""A reader of one sealed conversation, ready to prove access to whichever peer asks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from ...cid import Cid
from ...errors import ProofRejected
from ...nodes import Grant, Ring
from ..contentkey import ContentKey
from ..identity import Identity
from .access_sig import AccessSig
from .answering import answer
from .challenge import Challenge
from .group import SCALAR_BYTES
from .ring_or import RingOr
from .scheme import Terms


@dataclass(frozen=True)
class Reader:
    """Proves by one scheme, and by no other that a peer might prefer. A `Prover` of peers."""

    root: Cid
    """The sealed root."""
    scheme: str
    terms: Terms
    secret: bytes = field(repr=False)
    now_s: Callable[[], int] = field(repr=False)
    """Gives whole seconds since 1970."""

    @classmethod
    def of_key(cls, root: Cid, grant: Grant, key: ContentKey, now_s: Callable[[], int]) -> Self:
        """Prove by the access key, which all readers of the epoch have. Raises as `Terms.of`."""
        return cls(root, AccessSig.id, Terms.of(grant), key.access_seed(grant.root), now_s)

    @classmethod
    def of_ring(cls, root: Cid, grant: Grant, ring: Ring, identity: Identity, now_s: Callable[[], int]) -> Self:
        """Prove by being one of the grant's ring. Raises as `Terms.of`, so too for a ring that is not the grant's."""
        secret = identity.ring_scalar.to_bytes(SCALAR_BYTES, "big")
        return cls(root, RingOr.id, Terms.of(grant, ring=ring), secret, now_s)

    def answer(self, challenge: bytes, audience: str) -> bytes:
        """Prove access to `audience`. Raises as `answer`."""
        try:
            return answer(challenge, self.terms, {self.scheme: self.secret}, audience=audience, now_s=self.now_s())
        except ProofRejected as error:
            if error.data["reason"] != "audience":
                raise
            named = Challenge.decode(challenge).audience
            raise ProofRejected(
                f"{audience} asks for a proof of access to {named!r:.120}",
                hint="name the server by its own address, in --from; whoever runs it sets that with --public-url",
                scheme=self.scheme, reason="audience",
            ) from error  # fmt: skip
