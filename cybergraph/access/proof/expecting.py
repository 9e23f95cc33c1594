"""What asker and answerer both check of a challenge before they look at a key or a proof."""

from typing import Final

from .challenge import MAX_CHALLENGE_BYTES, MAX_LIFETIME_S, Challenge
from .registry import Registry
from .scheme import ProofScheme, Reason, Terms, rejected

_UNREAD: Final = "challenge"


def expect(
    data: bytes, terms: Terms, *, audience: str, now_s: int, skew_s: int, schemes: Registry
) -> tuple[Challenge, ProofScheme]:
    """Read a challenge and check scheme, audience, time, grant and root.

    Raises `ProofRejected`, and `MalformedNode`, `MalformedCbor` or `UnsupportedFormat` where `data` is no
    challenge.
    """
    if len(data) > MAX_CHALLENGE_BYTES:
        raise rejected(_UNREAD, "too-large")
    challenge = Challenge.decode(data)
    scheme = schemes[challenge.scheme]
    faults: dict[Reason, bool] = {
        "audience": challenge.audience != audience,
        "expired": challenge.expires_s <= now_s - skew_s,
        "too-far-ahead": challenge.expires_s > now_s + MAX_LIFETIME_S + skew_s,
        "grant": challenge.grant != terms.grant,
        "root": challenge.root != terms.root,
    }
    for reason, wrong in faults.items():
        if wrong:
            raise rejected(scheme.id, reason)
    return challenge, scheme
