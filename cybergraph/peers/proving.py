"""Proving access to a gateway that keeps sealed content back, and the token that it gives for that.

A token goes to the gateway that gave it and nowhere else; it is in no message and in no log.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import Final

from ..dagjson import decode, encode
from ..errors import Corrupt, PeerError, PeerMisbehaved, PeerUnreachable, ProofRejected
from ..foreign import AnyValue
from .answers import retry_after_s
from .base import Prover
from .line import Patience
from .redirect import Route
from .url import GatewayUrl

ASK_AT: Final = "/proof/challenge"
PROVE_AT: Final = "/proof"
WANTS: Final = "CyberKV-Proof"
"""How a gateway says that a proof of access is what is lacking (`WWW-Authenticate`, with status 401)."""
_MOST_ANSWER_BYTES: Final = 4096
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{16,128}")
_NO_DOOR: Final = (404, 405, 410, 501)
_BUSY: Final = (429, 503)


class Entry:
    """What one gateway lets in with. Safe to use from several threads."""

    def __init__(self, url: GatewayUrl, patience: Patience, sleep: Callable[[float], None]) -> None:
        self._url = url
        self._name = str(url)
        self._patience = patience
        self._sleep = sleep
        self._lock = Lock()
        self._is_open = False
        self.prover: Prover | None = None
        """Who proves; without one nothing is."""
        self.token: str | None = None

    def renew(self, used: str | None, route: Route, *, wanted: bool) -> bool:
        """Prove access, unless another thread did so since the token `used` was taken; say whether to ask again.

        `wanted` says that the gateway asked for a proof. One that did not, and merely lacks a block, is asked once
        whether it would like one. Raises `ProofRejected`, `PeerUnreachable`, `PeerMisbehaved`.
        """
        with self._lock:
            if self.prover is None or (not wanted and (used is not None or self._is_open)):
                return self.token != used
            if self.token == used:
                self.token = self._prove(route, self.prover, wanted=wanted)
                self._is_open = self.token is None
            return self.token is not None

    def _prove(self, route: Route, prover: Prover, *, wanted: bool) -> str | None:
        """Give a token; None where no proofs are taken."""
        try:
            challenge = self._post(route, ASK_AT, {"root": str(prover.root), "scheme": prover.scheme}, "challenge")
        except (PeerError, ProofRejected):
            if wanted:
                raise
            return None  # a gateway like any other, which knows nothing of proofs
        if challenge is None:
            return None
        if type(challenge) is not bytes:
            raise self._strange("a challenge")
        proof = prover.answer(challenge, audience_of(self._url))
        token = self._post(route, PROVE_AT, {"challenge": challenge, "proof": proof}, "token")
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise self._strange("a token")
        return token

    def _post(self, route: Route, target: str, fields: dict[str, AnyValue], wanted: str) -> AnyValue:
        """Ask for a field, and give it; None where the server has no such address, or the answer no such field."""
        for tries_left in range(self._patience.retries, -1, -1):
            line, answer = route.post(target, encode(fields), _MOST_ANSWER_BYTES)
            status, wait_s = answer.status, retry_after_s(answer)
            with line.guarded():
                data = answer.read(_MOST_ANSWER_BYTES)
            if not answer.isclosed():
                line.close()
            if status not in _BUSY or not tries_left or wait_s > self._patience.wait_s:
                break
            self._sleep(wait_s)
        if status in _NO_DOOR:
            return None
        if status in _BUSY or status >= 500:
            raise PeerUnreachable(f"{self._name} takes no proofs now (status {status})", peer=self._name, status=status)
        if status != 200:
            said = data.decode(errors="replace")
            raise ProofRejected(
                f"{self._name} turns this proof of access down (status {status}): {said!r:.120}",
                hint="the readers may have changed: ask for the new address", peer=self._name, reason="refused",
            )  # fmt: skip
        try:
            item = decode(data)
        except Corrupt as error:
            raise self._strange("dag-json") from error
        return item.get(wanted) if isinstance(item, dict) else None

    def _strange(self, wanted: str) -> PeerMisbehaved:
        return PeerMisbehaved(f"{self._name} answers a proof of access without {wanted}", peer=self._name)


def audience_of(url: GatewayUrl) -> str:
    """Give the name that a gateway at this URL must go by: without the port where it is the usual one.

    >>> audience_of(GatewayUrl.parse("https://Gateway.example:443/")), audience_of(GatewayUrl.parse("http://[::1]:8480"))
    ('https://gateway.example', 'http://[::1]:8480')
    """
    usual = url.origin == replace(url, port=None).origin
    return str(replace(url, port=None) if usual else url)
