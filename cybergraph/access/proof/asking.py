"""The side that asks for a proof: it issues challenges and takes each answer once."""

import secrets
from threading import Lock
from typing import Final

from ...cid import Cid
from .challenge import LIFETIME_S, NONCE_BYTES, Challenge
from .expecting import expect
from .registry import SCHEMES, Registry
from .scheme import Terms, Verdict, rejected

MAX_OPEN: Final = 1 << 16
"""Challenges waiting for an answer, about 200 bytes each."""


class Verifier:
    """Asks for proofs in the name of `audience`. Safe to use from several threads.

    It remembers the challenges that are open, not those that are used: what it does not remember it refuses.
    So when `max_open` wait, or after a restart, the oldest are refused and no answer is ever taken twice. Who
    may ask for how many challenges is for the caller to bound.
    """

    def __init__(self, audience: str, *, schemes: Registry = SCHEMES, max_open: int = MAX_OPEN) -> None:
        self.audience = audience
        self._schemes = schemes
        self._max_open = max_open
        self._open: dict[Cid, int] = {}  # in the order of issue: challenge by its hash -> second of expiry
        self._lock = Lock()

    @property
    def open_count(self) -> int:
        """How many challenges wait for an answer."""
        return len(self._open)

    def issue(self, scheme: str, terms: Terms, *, now_s: int) -> Challenge:
        """Make a challenge, good for `LIFETIME_S`, and remember it.

        Raises `ProofRejected` for an unknown scheme and where the terms lack what the scheme needs.
        """
        found = self._schemes[scheme]
        challenge = Challenge(
            scheme=found.id,
            grant=terms.grant,
            root=terms.root,
            audience=self.audience,
            expires_s=now_s + LIFETIME_S,
            nonce=secrets.token_bytes(NONCE_BYTES),
        )
        found.statement(challenge, terms)  # to find out now that nobody could answer
        with self._lock:
            while self._open:
                oldest, expires_s = next(iter(self._open.items()))
                if expires_s > now_s and len(self._open) < self._max_open:
                    break
                del self._open[oldest]
            self._open[challenge.cid()] = challenge.expires_s
        return challenge

    def check(self, data: bytes, proof: bytes, terms: Terms, *, now_s: int) -> Verdict:
        """Take the answer to a challenge, given as its bytes, and say what is proven.

        Cheap checks come first. An answer that reaches the proof itself spends the challenge, right or wrong, so
        that each challenge costs one verification at most. Raises `ProofRejected`, and `MalformedNode`,
        `MalformedCbor` or `UnsupportedFormat` where `data` is no challenge.
        """
        challenge, scheme = expect(data, terms, audience=self.audience, now_s=now_s, skew_s=0, schemes=self._schemes)
        if len(proof) > scheme.max_proof_bytes:
            raise rejected(scheme.id, "too-large")
        with self._lock:
            if self._open.pop(challenge.cid(), None) is None:
                raise rejected(scheme.id, "not-open")
        verdict = scheme.verify(challenge, terms, proof)
        if not verdict.ok:
            raise rejected(scheme.id, verdict.reason or "bad-proof")
        return verdict
