"""What this home believes of its peers, how old that is, and what they say now if they are asked."""

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Literal

from ..cybergraph.cid import Cid
from ..cybergraph.errors import BlockNotFound, CyberKVError
from .context import Session
from .kubo import open_source
from .rates import FAILED_BYTES_S, FETCH, read_rates
from .text import count, duration

NOBODYS = Cid.of(b"", "raw", "sha2-256")
"""The name of nothing: to ask for it tells a peer no more than that it was asked."""


@dataclass(frozen=True, slots=True)
class Known:
    """A peer that gave something once, or is asked now."""

    source: str
    conversations: int = 0
    """How many it gave."""
    gave: str | None = None
    """When it gave the last of them, by what the home noted; None where it never did, or that is not known."""
    age_s: float | None = None
    failed: bool = False
    """Whether it failed when something was fetched from it last."""
    state: Literal["not asked", "answers", "lacks it", "down"] = "not asked"
    """`lacks it`: it answers, and has what it gave no more."""
    reason: str | None = None

    def in_words(self) -> str:
        """Say the belief with its age, and what was seen now."""
        gave = f"gave {count(self.conversations, 'conversation')}" if self.conversations else "gave nothing so far"
        old = "" if self.age_s is None else f", the last {duration(self.age_s)} ago"
        failed = ", failed the last time" if self.failed else ""
        now = {"answers": "answers now", "lacks it": "answers now, and has it no more"}.get(self.state, self.state)
        return f"{gave}{old}{failed}; {now}{f': {self.reason}' if self.reason else ''}"

    def as_json(self) -> dict[str, Any]:
        """Give all fields."""
        return asdict(self)


def beliefs(session: Session) -> list[tuple[Known, Cid]]:
    """List the peers that gave conversations, each with the newest root that it gave. Nobody is asked."""
    times = {head.root: head.created for each in session.index.heads() for head in session.index.log(each.name)}
    gave: dict[str, list[Cid]] = {}
    for root, sources in session.index.sources().items():
        for source in sources:
            gave.setdefault(source, []).append(root)
    rates, now = read_rates(session.home, FETCH), session.now()
    known = []
    for source, roots in gave.items():
        newest = max(roots, key=lambda root: times.get(root, ""))
        at = times.get(newest) or None
        failed = rates.get(source) == FAILED_BYTES_S
        known.append((Known(source, len(roots), at, _age_s(at, now), failed), newest))
    return known


def _age_s(then: str | None, now: str) -> float | None:
    with suppress(ValueError, TypeError):  # foreign text, or a time without a zone
        return max(0.0, (datetime.fromisoformat(now) - datetime.fromisoformat(then or "")).total_seconds())
    return None


def ask(known: Known, cid: Cid = NOBODYS) -> tuple[Known, CyberKVError | None]:
    """Ask a peer for what it gave, else for nothing. Returns what it says, and the error of one that is down."""
    from ..cybergraph.peers.probe import PATIENCE

    try:
        with open_source(known.source, PATIENCE) as peer:
            list(peer.get_many([cid]))
    except BlockNotFound:
        return replace(known, state="answers" if cid == NOBODYS else "lacks it"), None
    except CyberKVError as error:
        return replace(known, state="down", reason=error.message), error
    return replace(known, state="answers"), None
