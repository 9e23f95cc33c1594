"""The connections of one worker to a gateway, and to where it redirects.

A redirect is followed where it stays at the same server, or leads to a host that the user allowed, and asks for the
same block; it never leads from https to http.
"""

from collections.abc import Callable
from typing import Final
from urllib.parse import urljoin, urlsplit

from ..errors import BadReference, PeerMisbehaved, PeerUnreachable
from .line import Answer, Line, Patience
from .reach import Reach
from .url import GatewayUrl

MOST_REDIRECTS: Final = 3
_STATUSES: Final = (301, 302, 303, 307, 308)
_SPENT_BYTES: Final = 4096
"""What is read of a body that nobody wants, so that its connection can be used again."""


class Route:
    """Connections of one worker. `abort` and `end` may be called from other threads."""

    def __init__(self, home: GatewayUrl, patience: Patience, clock: Callable[[], float], reach: Reach) -> None:
        self._home = home
        self._patience = patience
        self._clock = clock
        self._reach = reach
        self._lines = {home: Line(home, patience, clock, reach)}
        self._ended = False

    def ask(self, target: str, accept: str, cid: str, most_bytes: int, token: str | None = None) -> tuple[Line, Answer]:
        """Ask for `target`, which is about `cid`, and follow redirects. A token goes to the first server only.

        Raises as `Line.ask`, `PeerMisbehaved`.
        """
        at = self._home
        for _ in range(MOST_REDIRECTS + 1):
            line = self._line(at)
            own = {"Authorization": f"Bearer {token}"} if token is not None and at.origin == self._home.origin else {}
            answer = line.ask(target, {"Accept": accept, **own}, most_bytes)
            if answer.status not in _STATUSES:
                return line, answer
            location = answer.getheader("location", "")
            spend(line, answer)
            at, target = follow(at, target, location, cid, self._reach)
        raise PeerMisbehaved(f"{self._home} redirects more than {MOST_REDIRECTS} times", peer=str(self._home))

    def post(self, target: str, body: bytes, most_bytes: int) -> tuple[Line, Answer]:
        """Send JSON to the first server, and follow nothing. Raises as `Line.ask`."""
        line = self._line(self._home)
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        return line, line.ask(target, headers, most_bytes, method="POST", body=[body])

    def _line(self, at: GatewayUrl) -> Line:
        if self._ended:
            raise PeerUnreachable(f"{self._home} was closed here", peer=str(self._home))
        if at not in self._lines:
            self._lines[at] = Line(at, self._patience, self._clock, self._reach)
        return self._lines[at]

    def hang_up(self) -> None:
        """Fail what is under way."""
        for line in list(self._lines.values()):
            line.hang_up()

    def end(self) -> None:
        """Fail what is under way, and everything after it."""
        self._ended = True
        for line in list(self._lines.values()):
            line.end()

    def close(self) -> None:
        """Drop the connections."""
        for line in list(self._lines.values()):
            line.close()


def spend(line: Line, answer: Answer) -> None:
    """Read the rest of an answer that nobody wants, or drop its connection."""
    if answer.chunked or (answer.length is not None and answer.length <= _SPENT_BYTES):
        with line.guarded():
            answer.read(_SPENT_BYTES)
    if not answer.isclosed():
        line.close()


def follow(at: GatewayUrl, target: str, location: str, cid: str, reach: Reach) -> tuple[GatewayUrl, str]:
    """Say where a redirect from `target` leads: the server, and the target there.

    Raises `PeerMisbehaved` for one that is not followed.
    """

    def refused(why: str, hint: str = "give the final address in --from") -> PeerMisbehaved:
        return PeerMisbehaved(f"{at} redirects {cid} to {location!r:.160}, {why}", hint=hint, peer=str(at), cid=cid)

    try:
        parts = urlsplit(urljoin(f"{at}{target}", location))
        there = GatewayUrl.parse(f"{parts.scheme}://{parts.netloc}")
    except (BadReference, ValueError) as error:
        raise refused("which is no address of a gateway") from error
    if at.scheme == "https" and there.scheme == "http":
        raise refused("which gives up https")
    if there.host == f"{cid}.ipfs.{at.host}":
        raise refused(
            "a subdomain, which suits browsers only", "for a node on this machine write 127.0.0.1 in place of localhost"
        )
    if there.origin != at.origin and not reach.names(there.host):
        raise refused("another server", f"give the final address in --from, or --allow-host {there.host}")
    if parts.path.rstrip("/") != f"/ipfs/{cid}":
        raise refused("which is not about the same block")
    return there, parts.path + (f"?{parts.query}" if parts.query else "")
