"""The challenge that a proof answers: who asks, about which grant and root, until when, and a number used once.

Times are whole seconds since 1970 and come from the caller. Asker and answerer have clocks of their own; where
the answerer judges a time it allows for `SKEW_S` between them. The asker judges only times it set itself, with
no allowance.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from ...cid import Cid
from ...nodes import Node
from ...nodes.kinds import Bytes, Link, Text, Uint

MAX_LIFETIME_S: Final = 300
"""No challenge is good for longer: an answer that leaks is worthless soon."""

LIFETIME_S: Final = 60
"""How long the challenges made here are good for."""

SKEW_S: Final = 60
"""How far apart the clocks of asker and answerer may be."""

MAX_CHALLENGE_BYTES: Final = 1024
"""More than any challenge takes; longer input is refused unread."""

NONCE_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Challenge(Node):
    """A request for proof of access. Its bytes are public; every field is bound by the proof."""

    scheme: Annotated[str, Text(64)]
    """Name of the proof scheme that must answer."""
    grant: Annotated[Cid, Link("dag-cbor")]
    """The signed grant under which the reader claims access."""
    root: Annotated[Cid, Link("raw")]
    """The sealed page table that the grant opens."""
    audience: Annotated[str, Text(256)]
    """Who asks, by the name under which the reader reached it: a proof for one is refused by all others."""
    expires_s: Annotated[int, Uint()]
    """From this second on the challenge is void."""
    nonce: Annotated[bytes, Bytes(NONCE_BYTES)]

    TYPE: ClassVar = "cyberkv/challenge"
