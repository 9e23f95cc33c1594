"""`ring-or/secp256k1/1`: "I hold the secret key of one of these N", and nothing about which.

An OR of N Schnorr proofs (Cramer, Damgard, Schoenmakers), made non-interactive by a hash over the statement and
all commitments. For each member a proof holds scalars c and z that fix the commitment R = z*G - c*Y. Anyone
can choose c and z first; but the hash over all R also fixes the sum of all c, so that one c at least was chosen
after its R, and then only the holder of that key can know z.

The prover chooses c and z at random for every member, itself included, and afterwards moves its own pair
along: c by what the sum lacks, z by that times its secret, which leaves R as it was. So every member takes
the same steps, and the finished pairs are all alike: uniform but for their sum.
"""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Final

from ...limits import MAX_RING_KEYS
from ...nodes import Ring
from ..contentkey import framed
from ..identity import RING_ORDER
from .challenge import Challenge
from .group import SCALAR_BYTES, Group, native_or_plain
from .ring import RING_SCHEME
from .scheme import Hides, Terms, Verdict, proven, rejected, statement_of, unproven

_PAIR_BYTES: Final = 2 * SCALAR_BYTES
_DRAW_BYTES: Final = SCALAR_BYTES + 16
"""Reduced modulo the order, 48 bytes are uniform to within 2**-128."""


class RingOr:
    """Secret: a 32-byte scalar, big endian. A proof takes 64 bytes a member, in the order of the ring."""

    id: Final = RING_SCHEME
    hides: Final[Hides] = "reader-in-ring"
    max_proof_bytes: Final = _PAIR_BYTES * MAX_RING_KEYS

    def __init__(self, group: Group | None = None) -> None:
        """Compute with `group`, or with the best library that is here when it is first needed."""
        self._group = group

    @property
    def group(self) -> Group:
        """The library that computes."""
        self._group = self._group or native_or_plain()
        return self._group

    def statement(self, challenge: Challenge, terms: Terms) -> bytes:  # noqa: D102
        return statement_of(self.id, challenge, self._ring(terms).cid())

    def prove(self, challenge: Challenge, terms: Terms, secret: bytes) -> bytes:  # noqa: D102
        statement = self.statement(challenge, terms)
        return self._prove(statement, self._ring(terms).keys, secret, secrets.token_bytes(32))

    def _prove(self, statement: bytes, keys: Sequence[bytes], secret: bytes, fresh: bytes) -> bytes:
        x = int.from_bytes(secret, "big")
        if len(secret) != SCALAR_BYTES or not 0 < x < RING_ORDER:
            raise rejected(self.id, "not-a-member")
        own_key = self.group.public_key(x)
        own = [int(hmac.compare_digest(key, own_key)) for key in keys]
        if sum(own) != 1:
            raise rejected(self.id, "not-a-member")
        drawn = _draw(2 * len(keys), statement, secret, fresh)
        cs, zs = drawn[: len(keys)], drawn[len(keys) :]
        try:
            commitments = [self.group.commitment(key, c, z) for key, c, z in zip(keys, cs, zs, strict=True)]
        except ValueError as error:  # a member's key is no point
            raise rejected(self.id, "wrong-ring") from error
        lacking = (_hash(statement, commitments) - sum(cs)) % RING_ORDER
        moved = [
            ((c + mine * lacking) % RING_ORDER, (z + mine * lacking * x) % RING_ORDER)
            for mine, c, z in zip(own, cs, zs, strict=True)
        ]
        return b"".join(scalar.to_bytes(SCALAR_BYTES, "big") for pair in moved for scalar in pair)

    def verify(self, challenge: Challenge, terms: Terms, proof: bytes) -> Verdict:  # noqa: D102
        statement, keys = self.statement(challenge, terms), self._ring(terms).keys
        if len(proof) != _PAIR_BYTES * len(keys):
            return unproven("bad-proof")
        scalars = [int.from_bytes(proof[at : at + SCALAR_BYTES], "big") for at in range(0, len(proof), SCALAR_BYTES)]
        cs, zs = scalars[::2], scalars[1::2]
        if not all(0 < scalar < RING_ORDER for scalar in scalars):
            return unproven("bad-proof")
        try:
            commitments = [self.group.commitment(key, c, z) for key, c, z in zip(keys, cs, zs, strict=True)]
        except ValueError:
            return unproven("bad-proof")
        if sum(cs) % RING_ORDER != _hash(statement, commitments):
            return unproven("bad-proof")
        return proven(f"one-of-ring:{terms.ring_cid}")

    def _ring(self, terms: Terms) -> Ring:
        if terms.ring is None:
            raise rejected(self.id, "no-ring")
        return terms.ring


def _draw(count: int, statement: bytes, secret: bytes, fresh: bytes) -> list[int]:
    """Draw scalars above zero from fresh randomness, the secret and the statement.

    Where the source of randomness fails and repeats itself, two statements still never share a draw.
    """
    source = hashlib.shake_256(framed(b"cyberkv/proof/ring-or/draw/1", secret, fresh, statement))
    stream = source.digest(count * _DRAW_BYTES)
    return [
        int.from_bytes(stream[at : at + _DRAW_BYTES], "big") % (RING_ORDER - 1) + 1
        for at in range(0, len(stream), _DRAW_BYTES)
    ]


def _hash(statement: bytes, commitments: Sequence[bytes]) -> int:
    """Hash to a scalar; 64 bytes reduced modulo the order leave no bias to speak of."""
    parts = framed(b"cyberkv/proof/ring-or/hash/1", statement, *commitments)
    return int.from_bytes(hashlib.sha512(parts).digest(), "big") % RING_ORDER
