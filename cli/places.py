"""Where `fetch` brings a conversation from: what was named, what routers name, what is remembered."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..cybergraph.cid import Cid
from ..cybergraph.errors import BlockNotFound, CyberKVError, MalformedCar
from .context import Session
from .kubo import open_source
from .output import remark
from .rates import FAILED_BYTES_S, FETCH, keep_rates, read_rates

if TYPE_CHECKING:
    from ..cybergraph.peers import Peer
    from ..cybergraph.peers.routing import Router
    from ..cybergraph.transfer.source import SourceReport

_TELLING_BYTES = 2 << 20
"""What a source must have given before its speed says anything."""


@dataclass(frozen=True)
class Place:
    """A peer, open, and how it came to be asked."""

    peer: "Peer"
    source: str
    """What opens it again."""
    router: str | None = None
    """Who named it, if a router did."""
    is_new: bool = True
    """Whether it is worth remembering."""


def named(sources: Sequence[str], hosts: tuple[str, ...], stack: ExitStack) -> list[Place]:
    """Open what the user named. Raises `BadReference`, `NotFound`, and for a CAR file what is wrong with it."""
    return [Place(stack.enter_context(_open(source, hosts)), _lasting(source)) for source in sources]


def _open(source: str, hosts: tuple[str, ...]) -> "Peer":
    try:
        return open_source(source, hosts=hosts)
    except MalformedCar as error:
        raise MalformedCar(
            f"{source} is no CAR file: {error.message}",
            hint="`publish --car` writes one; a text is recorded with `cyberkv prefill`", **error.data,
        ) from error  # fmt: skip


def routed(
    session: Session, root: Cid, routers: "Sequence[Router]", hosts: tuple[str, ...], stack: ExitStack
) -> list[Place]:
    """Ask routers for gateways, and open those that answer, the quickest first. Says who does not."""
    from ..cybergraph.peers import ROUTED, Reach
    from ..cybergraph.peers.routed import find_gateways

    if not routers:
        return []
    reach = Reach.to(hosts, anywhere=False)
    routing = find_gateways(root, routers, reach)
    for _, reason in routing.passed_over:
        remark(session, f"not asked: {reason}")
    places = []
    for gateway in routing.gateways:
        # A host that the user allowed counts as named by the user, next time too.
        allowed = reach.names(urlsplit(gateway.url).hostname or "")
        source = gateway.url if allowed else f"{ROUTED}{gateway.url}"
        places.append(Place(stack.enter_context(open_source(source, hosts=hosts)), source, gateway.router))
    return places


def known(session: Session, root: Cid, hosts: tuple[str, ...], stack: ExitStack) -> list[Place]:
    """Open the peers that gave the conversation before, as far as they are there."""
    places: list[Place] = []
    for source in session.index.sources().get(root, ()):
        with suppress(CyberKVError):
            peer = stack.enter_context(open_source(source, hosts=hosts))
            places.append(Place(peer, source, is_new=False))
    return places


def by_speed(session: Session, places: Sequence[Place]) -> list[Place]:
    """Put first who gave fastest in earlier fetches and last who failed; those not known keep their order between."""
    rates = read_rates(session.home, FETCH)

    def rank(place: Place) -> tuple[int, float]:
        rate = rates.get(place.source)
        return (1, 0.0) if rate is None else (0, -rate) if rate > FAILED_BYTES_S else (2, 0.0)

    return sorted(places, key=rank)


def note_speeds(session: Session, came: "Sequence[tuple[Place, SourceReport]]") -> None:
    """Remember how fast each source gave, as far as this fetch could tell."""
    rates: dict[str, float] = {}
    for place, report in came:
        if report.state != "ok":
            rates[place.source] = FAILED_BYTES_S
        elif report.bytes >= _TELLING_BYTES and report.busy_s:
            rates[place.source] = round(report.bytes / report.busy_s, 1)
    if rates:
        keep_rates(session.home, FETCH, rates)


def nobody(root: Cid, routers: "Sequence[Router]") -> BlockNotFound:
    """Build the error for routers that lead nowhere."""
    names = ", ".join(router.name for router in routers)
    return BlockNotFound(
        f"{root} is not here, and {names} named no gateway that can be asked",
        hint="name a source with --from, or another router", cid=str(root), routers=[router.name for router in routers],
    )  # fmt: skip


def _lasting(source: str) -> str:
    """Name a source so that it is found again from another folder."""
    from ..cybergraph.peers import is_file

    return str(Path(source).resolve()) if is_file(source) else source
