"""The side that answers: a reader who is asked by someone it need not trust."""

from collections.abc import Mapping

from .challenge import SKEW_S
from .expecting import expect
from .registry import SCHEMES, Registry
from .scheme import Terms, rejected


def answer(
    data: bytes,
    terms: Terms,
    secrets: Mapping[str, bytes],
    *,
    audience: str,
    now_s: int,
    schemes: Registry = SCHEMES,
) -> bytes:
    """Prove access to whoever sent the challenge `data`, after checking that it is what the reader expects.

    `terms` come from the reader's own copy of the grant, never from the asker: else it could name a ring that
    hides nobody. `secrets` holds a key for each scheme that the reader is willing to answer by; any other is
    refused, since schemes differ in what they reveal. `audience` is the asker as the reader reached it: a
    challenge passed on from a third party names another.

    Raises `ProofRejected`, and `MalformedNode`, `MalformedCbor` or `UnsupportedFormat` where `data` is no
    challenge.
    """
    challenge, scheme = expect(data, terms, audience=audience, now_s=now_s, skew_s=SKEW_S, schemes=schemes)
    if scheme.id not in secrets:
        raise rejected(scheme.id, "not-answered")
    return scheme.prove(challenge, terms, secrets[scheme.id])
