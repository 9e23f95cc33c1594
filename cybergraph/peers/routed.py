"""Gateways that routers name for a conversation, tried out and ranked before anything is asked of them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..cid import Cid
from ..errors import CyberKVError, PeerUnreachable, Refused
from .http import HttpPeer
from .line import Patience
from .reach import Reach
from .routing import Router

PATIENCE: Final = Patience(connect_s=3.0, read_s=3.0, block_s=5.0, retries=0)
"""Strangers are many, and somebody waits."""
MOST_ROUTED: Final = 8
"""Gateways used in one fetch, of those that routers name."""
_AT_ONCE: Final = 16


class Routed(NamedTuple):
    """A gateway, and who named it."""

    url: str
    router: str
    latency_s: float | None
    """Seconds from asking to the answer, connecting included; None where it lives, but answers as no gateway should."""


@dataclass(frozen=True)
class Routing:
    """What routers had to say."""

    gateways: list[Routed]
    """Those that can be asked, the quickest first."""
    passed_over: list[tuple[str, str]]
    """Routers and gateways that are of no use, each with the reason."""


def find_gateways(cid: Cid, routers: Sequence[Router], reach: Reach) -> Routing:
    """Ask every router who holds `cid`, and every gateway they name whether it is there.

    Takes at most some twenty seconds, whatever the routers say. Raises nothing: a router that fails is passed over.
    """
    named: dict[str, str] = {}
    passed_over: list[tuple[str, str]] = []
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="routing") as workers:
        for router, found in zip(routers, workers.map(lambda router: _ask(router, cid), routers), strict=True):
            if isinstance(found, CyberKVError):
                passed_over.append((router.name, found.message))
                continue
            for url in found:
                named.setdefault(url, router.name)
        tried = list(workers.map(lambda url: _try(url, reach), named))
    gateways: list[Routed] = []
    for (url, by), latency_s in zip(named.items(), tried, strict=True):
        if isinstance(latency_s, PeerUnreachable | Refused):
            passed_over.append((url, f"{latency_s.message} (named by {by})"))
        else:
            gateways.append(Routed(url, by, None if isinstance(latency_s, CyberKVError) else latency_s))
    gateways.sort(key=lambda each: float("inf") if each.latency_s is None else each.latency_s)
    return Routing(gateways[:MOST_ROUTED], passed_over)


def _ask(router: Router, cid: Cid) -> list[str] | CyberKVError:
    try:
        return router.gateways(cid)
    except CyberKVError as error:
        return error


def _try(url: str, reach: Reach) -> float | CyberKVError:
    try:
        with HttpPeer(url, patience=PATIENCE, connections=1, reach=reach) as peer:
            return peer.latency_s()
    except CyberKVError as error:
        return error
