"""What every proof scheme is, and the three things around it: terms, verdict, rejection.

A scheme never decides on its own what it proves. Both sides build the statement from the same public inputs:
the challenge and what the signed grant says. A proof for another statement does not verify.
"""

from dataclasses import dataclass
from typing import Final, Literal, Protocol, Self

from ...cid import Cid
from ...errors import ProofRejected
from ...nodes import Grant, Ring
from ..contentkey import framed
from ..ed25519 import check_public_key
from ..grant import check_grant
from .challenge import Challenge
from .ring import RING_SCHEME, check_ring

Hides = Literal["nothing", "reader-in-group", "reader-in-ring"]

Reason = Literal[
    "unknown-scheme", "not-answered", "too-large", "audience", "expired", "too-far-ahead", "grant", "root", "not-open",
    "too-many", "wrong-key", "no-ring", "wrong-ring", "not-a-member", "bad-proof",
]  # fmt: skip

_NEW_CHALLENGE: Final = "ask for a new challenge"
_WORDS: Final[dict[Reason, tuple[str, str]]] = {
    "unknown-scheme": ("no scheme of this name", "a newer cyberkv may know it"),
    "not-answered": ("no key is offered for proofs by this scheme", ""),
    "too-large": ("longer than any proof or challenge of this scheme", ""),
    "audience": ("the challenge is from someone else than the one it would be shown to", ""),
    "expired": ("the challenge has expired", f"{_NEW_CHALLENGE}; check that the clock of this machine is right"),
    "too-far-ahead": ("the challenge is good for longer than allowed", "check that the clock of this machine is right"),
    "grant": ("the challenge is about another grant", "fetch the newest grant"),
    "root": ("the challenge is about another root", ""),
    "not-open": ("the challenge was not issued here, or is used", _NEW_CHALLENGE),
    "too-many": ("too many challenges wait for an answer from there", "answer them, or wait until one has expired"),
    "wrong-key": ("the key is not the one of this grant", "the readers may have changed: fetch the newest grant"),
    "no-ring": ("the grant names no ring, or its keys are not here", ""),
    "wrong-ring": ("the ring is not the one that the grant names", ""),
    "not-a-member": ("the key is not among those that may answer", "the readers may have changed"),
    "bad-proof": ("the proof does not hold", ""),
}


def rejected(scheme: str, reason: Reason, **more: int) -> ProofRejected:
    """Build the error for a challenge or proof that is turned down. Data: `scheme`, `reason`, and `more`."""
    words, hint = _WORDS[reason]
    return ProofRejected(
        f"proof of access by {scheme!r:.80}: {words}", hint=hint, scheme=scheme[:80], reason=reason, **more
    )


@dataclass(frozen=True, slots=True)
class Terms:
    """What proofs are about: facts from a signed grant, and keys that go with it.

    Raises `ProofRejected` for a ring other than the one that the grant names, `MalformedNode` for one that hides
    too little or lists a key twice, `BadKey` for an access key or member's key under which anybody could sign.
    """

    grant: Cid
    """CID of the signed grant."""
    root: Cid
    """The sealed page table that it opens."""
    access_key: bytes
    """The access key of the grant's epoch, public half, 32 bytes."""
    ring_cid: Cid | None = None
    ring: Ring | None = None
    """The ring that `ring_cid` names, where it is at hand."""
    roster: frozenset[bytes] = frozenset()
    """Ed25519 keys of the members an asker knows; it need not be known to those who answer."""

    def __post_init__(self) -> None:
        for key in (self.access_key, *self.roster):
            check_public_key(key)
        if self.ring is not None:
            check_ring(self.ring)
            if self.ring.cid() != self.ring_cid:
                raise rejected(RING_SCHEME, "wrong-ring")

    @classmethod
    def of(cls, grant: Grant, *, ring: Ring | None = None, roster: frozenset[bytes] = frozenset()) -> Self:
        """Take the facts from a grant; whether its issuer may be trusted is for the caller to judge.

        Raises as the class does, and as `check_grant` where the grant is not what its issuer signed.
        """
        check_grant(grant)
        return cls(grant.cid(), grant.root, grant.access, grant.ring, ring, roster)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verification found. `claims` says what is proven, and is empty unless `ok`."""

    ok: bool
    claims: frozenset[str]
    reason: Reason | Literal[""]


def proven(*claims: str) -> Verdict:
    """Build the verdict on a proof that holds."""
    return Verdict(ok=True, claims=frozenset(claims), reason="")


def unproven(reason: Reason) -> Verdict:
    """Build the verdict on a proof that does not hold."""
    return Verdict(ok=False, claims=frozenset(), reason=reason)


class ProofScheme(Protocol):
    """One way to prove access. Secrets are 32 bytes in every scheme."""

    @property
    def id(self) -> str:
        """Name and version."""

    @property
    def hides(self) -> Hides:
        """What an asker does not learn about who answered."""

    @property
    def max_proof_bytes(self) -> int:
        """No proof is longer."""

    def statement(self, challenge: Challenge, terms: Terms) -> bytes:
        """Write what is proven, canonically: the whole challenge, and those terms that the proof is about."""

    def prove(self, challenge: Challenge, terms: Terms, secret: bytes) -> bytes:
        """Prove the statement. Raises `ProofRejected` where `secret` does not fit the terms."""

    def verify(self, challenge: Challenge, terms: Terms, proof: bytes) -> Verdict:
        """Judge a proof of any bytes. Raises `ProofRejected` where the terms lack what the scheme needs."""


def statement_of(scheme: str, challenge: Challenge, bound: bytes) -> bytes:
    """Write a statement: what it is for, the whole challenge, and the public inputs that `bound` names."""
    return framed(b"cyberkv/proof/v1", scheme.encode(), challenge.encode(), bound)
