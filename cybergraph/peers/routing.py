"""Delegated routing: a server that knows who holds a conversation is asked which gateways do.

A router learns which conversation is asked for, and nothing it says is believed: whoever it names is held to the same
checks as any peer, and is asked at public addresses only.

>>> gateway_of("/dns4/gateway.example/tcp/443/tls/http/p2p/12D3KooW")
'https://gateway.example'
>>> gateway_of("/ip6/2001:db8::7/tcp/8080/http"), gateway_of("/ip4/192.0.2.7/udp/4001/quic-v1")
('http://[2001:db8::7]:8080', None)
"""

import io
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from ..cid import Cid
from ..errors import BadReference, CyberKVError, PeerMisbehaved, PeerUnreachable
from .endpoint import Endpoint
from .line import Answer, Body, Line, Patience
from .redirect import spend
from .url import GatewayUrl

PATIENCE: Final = Patience(connect_s=5.0, read_s=10.0, block_s=10.0, retries=0)
"""Ten seconds for a whole answer: a router that searches sends what it finds as it finds it."""
MOST_ANSWER_BYTES: Final = 1 << 20
MOST_RECORDS: Final = 1000
"""Records looked at, of whatever kind."""
MOST_GATEWAYS: Final = 16
"""Gateways taken from one router, the first it names."""
_JSON: Final = "application/json"
_LINES: Final = "application/x-ndjson"
_VALUED: Final = ("dns", "dns4", "dns6", "ip4", "ip6", "tcp", "sni", "p2p")
_BARE: Final = ("tls", "http", "https")


@dataclass(frozen=True)
class RouterUrl(Endpoint):
    """A router answers at `/routing/v1/providers/<cid>`."""

    kind = "the URL of a router"
    hint = "write https://host or https://host/routing/v1"
    login_hint = "routers are asked without credentials"
    paths = re.compile(r"/*(?:routing/v1)?/*")


class Router:
    """A server of delegated routing."""

    def __init__(self, url: str, *, patience: Patience = PATIENCE, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare, without connecting. Raises `BadReference` for what is no router's URL."""
        self._url = RouterUrl.parse(url)
        self.name = str(self._url)
        self._patience = patience
        self._clock = clock

    def gateways(self, cid: Cid) -> list[str]:
        """Ask who holds a block, and give the URLs of those that are gateways, in the order of the answer.

        An answer that stops in the middle counts as far as it went. Raises `PeerUnreachable`, `PeerMisbehaved`.
        """
        line = Line(self._url, self._patience, self._clock)
        found: dict[str, None] = {}
        try:
            for record in self._records(line, cid):
                found.update(dict.fromkeys(filter(None, map(gateway_of, _addresses(record)))))
                if len(found) >= MOST_GATEWAYS:
                    break
        except CyberKVError:
            if not found:
                raise
        finally:
            line.close()
        return list(found)[:MOST_GATEWAYS]

    def _records(self, line: Line, cid: Cid) -> Iterator[Any]:
        """Give the records of an answer, whatever they are."""
        target = f"/routing/v1/providers/{cid}?filter-protocols=unknown,transport-ipfs-gateway-http"
        answer = line.ask(target, {"Accept": f"{_LINES}, {_JSON}"}, MOST_ANSWER_BYTES)
        if answer.status != 200:
            spend(line, answer)
        if answer.status == 404:
            return  # it knows nobody
        if answer.status != 200:
            kind = PeerUnreachable if answer.status == 429 or answer.status >= 500 else PeerMisbehaved
            raise kind(
                f"{self.name} answers status {answer.status} when asked who has {cid}",
                hint="is it a router, with /routing/v1?", peer=self.name, status=answer.status,
            )  # fmt: skip
        got = answer.getheader("content-type", "").partition(";")[0].strip().lower()
        if got not in (_JSON, _LINES):
            raise PeerMisbehaved(
                f"{self.name} answers with {got!r:.80} when asked who has {cid}",
                hint="is it a router, with /routing/v1?", peer=self.name, got=got[:80],
            )  # fmt: skip
        with line.guarded():
            yield from self._lines(answer) if got == _LINES else self._whole(answer)

    def _lines(self, answer: Answer) -> Iterator[Any]:
        lines = io.BufferedReader(Body(answer))
        for _ in range(MOST_RECORDS):
            if not (text := lines.readline(MOST_ANSWER_BYTES)):
                return
            if text.strip():
                yield self._parse(text)

    def _whole(self, answer: Answer) -> Iterator[Any]:
        content = self._parse(answer.read(MOST_ANSWER_BYTES))
        records = content.get("Providers") or [] if isinstance(content, dict) else None
        if not isinstance(records, list):
            raise PeerMisbehaved(f"{self.name} answers without a list of providers", peer=self.name)
        yield from records[:MOST_RECORDS]

    def _parse(self, text: bytes) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PeerMisbehaved(f"{self.name} answers with {text[:80]!r}, which is no JSON", peer=self.name) from error


def _addresses(record: Any) -> Iterator[str]:
    """Give the addresses of a record; one of a schema that is not known may have none."""
    addresses = record.get("Addrs") if isinstance(record, dict) else None
    yield from (each for each in addresses or () if isinstance(each, str)) if isinstance(addresses, list) else ()


def gateway_of(address: str) -> str | None:
    """Give the URL that a multiaddr of an HTTP server stands for, else None."""
    if not address.isascii():
        return None  # names beyond ASCII have a form within it, which cannot look like another
    words, parts = iter(address.split("/")[1:]), dict[str, str]()
    for word in words:
        if word not in _VALUED and word not in _BARE:
            return None
        parts[word] = next(words, "") if word in _VALUED else ""
    hosts = [parts[kind] for kind in ("dns", "dns4", "dns6", "ip4", "ip6") if kind in parts]
    secure = "https" in parts or ("tls" in parts and "http" in parts)
    if len(hosts) != 1 or not (secure or "http" in parts) or parts.get("sni", hosts[0]) != hosts[0]:
        return None
    scheme, host = "https" if secure else "http", f"[{hosts[0]}]" if "ip6" in parts else hosts[0]
    port = parts.get("tcp", "")
    usual = port == {"http": "80", "https": "443"}[scheme]
    try:
        return str(GatewayUrl.parse(f"{scheme}://{host}" + (f":{port}" if port and not usual else "")))
    except BadReference:
        return None
