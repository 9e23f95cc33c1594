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
"""Challenges waiting for an answer, about 300 bytes each."""
MOST_OPEN_EACH: Final = 64
"""Of those, for one asker: with `LIFETIME_S` it bounds how fast anybody can have challenges made."""


class Verifier:
    """Asks for proofs in the name of `audience`. Safe to use from several threads.

    It remembers the challenges that are open, not those that are used: what it does not remember it refuses.
    So when `max_open` wait, or after a restart, the oldest are refused and no answer is ever taken twice. One
    asker has at most `MOST_OPEN_EACH` of them: to push out those of others takes many addresses.
    """

    def __init__(self, audience: str, *, schemes: Registry = SCHEMES, max_open: int = MAX_OPEN) -> None:
        self.audience = audience
        self._schemes = schemes
        self._max_open = max_open
        self._open: dict[Cid, tuple[int, str | None]] = {}
        """In the order of issue: challenge by its hash -> second of expiry, and for whom."""
        self._each: dict[str, dict[Cid, int]] = {}
        """Asker -> what is open for it, in the same order."""
        self._lock = Lock()

    @property
    def open_count(self) -> int:
        """How many challenges wait for an answer."""
        return len(self._open)

    def issue(self, scheme: str, terms: Terms, *, now_s: int, asker: str | None = None) -> Challenge:
        """Make a challenge, good for `LIFETIME_S`, and remember it.

        `asker` is whoever is counted, such as an address; None is not counted. Raises `ProofRejected` for an unknown
        scheme, where the terms lack what the scheme needs, and for an asker with too many that are open; then its data
        has `retry_s`, the time until one of these expires.
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
                oldest, (expires_s, _) = next(iter(self._open.items()))
                if expires_s > now_s and len(self._open) < self._max_open:
                    break
                self._drop(oldest)
            if asker is not None:
                own = self._each.setdefault(asker, {})
                if len(own) >= MOST_OPEN_EACH:
                    raise rejected(found.id, "too-many", retry_s=max(1, next(iter(own.values())) - now_s))
                own[challenge.cid()] = challenge.expires_s
            self._open[challenge.cid()] = challenge.expires_s, asker
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
            if not self._drop(challenge.cid()):
                raise rejected(scheme.id, "not-open")
        verdict = scheme.verify(challenge, terms, proof)
        if not verdict.ok:
            raise rejected(scheme.id, verdict.reason or "bad-proof")
        return verdict

    def _drop(self, challenge: Cid) -> bool:
        """Forget a challenge, and say whether it was open. The caller holds the lock."""
        found = self._open.pop(challenge, None)
        if found is None:
            return False
        if (asker := found[1]) is not None:
            del self._each[asker][challenge]
            if not self._each[asker]:
                del self._each[asker]
        return True
