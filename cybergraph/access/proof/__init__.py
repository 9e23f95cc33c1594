"""Proof of access: a reader shows that it holds a key of a grant, and no more than the scheme says.

A proof guards bandwidth and released keys, not the content: what is sealed is kept from others by encryption.
`Verifier` asks, `answer` answers, `SCHEMES` lists the ways to prove.
"""

from .access_sig import AccessSig
from .answering import answer
from .asking import MAX_OPEN, MOST_OPEN_EACH, Verifier
from .challenge import LIFETIME_S, MAX_CHALLENGE_BYTES, MAX_LIFETIME_S, SKEW_S, Challenge
from .group import Group, native_or_plain
from .member_sig import MemberSig
from .prover import Reader
from .registry import DEFAULT_SCHEME, SCHEMES, Registry
from .ring import MIN_RING_KEYS, check_ring, make_ring
from .ring_or import RingOr
from .scheme import ProofScheme, Terms, Verdict

__all__ = [
    "DEFAULT_SCHEME", "LIFETIME_S", "MAX_CHALLENGE_BYTES", "MAX_LIFETIME_S", "MAX_OPEN", "MIN_RING_KEYS",
    "MOST_OPEN_EACH", "SCHEMES", "SKEW_S", "AccessSig", "Challenge", "Group", "MemberSig", "ProofScheme", "Reader",
    "Registry", "RingOr", "Terms", "Verdict", "Verifier", "answer", "check_ring", "make_ring", "native_or_plain",
]  # fmt: skip
