"""How much of a server one reader, and all of them together, may have at a time.

Programs on the same machine are not counted by address. A proxy among them is believed when it says for whom it asks
(`X-Forwarded-For`), and that address is counted; one that does not say stands for everybody.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from ipaddress import IPv6Address, ip_address
from typing import Final

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from .refusal import REFUSED

MOST_CONNECTIONS = 256
MOST_CONNECTIONS_EACH = 64
"""Connections from one address."""
MOST_REQUESTS = 128
"""Requests that are being answered at one time."""
MOST_REQUESTS_EACH = 64
"""Of those, for one address."""
RATE_REQUESTS_S = 1000.0
"""Requests of one address in a second, for long: 256 MB/s of single leaves."""
BURST_REQUESTS = 4000.0
"""Requests of one address that may come at once after a rest."""
MOST_HEAD_BYTES: Final = 16 << 10
"""Longest request line and headers."""
_BOTH_LENGTHS: Final = frozenset((b"content-length", b"transfer-encoding"))
_MOST_ADDRESSES: Final = 4096
"""Addresses that are remembered; of more, those that were heard of longest ago are forgotten."""


def is_local(host: str) -> bool:
    """Whether an address is this machine's own loopback."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def may_connect(host: str, others: Iterable[str]) -> bool:
    """Whether one more connection, from `host`, may stay beside those from `others`."""
    addresses = list(others)
    if len(addresses) >= MOST_CONNECTIONS:
        return False
    return is_local(host) or sum(map(reader(host).__eq__, map(reader, addresses))) < MOST_CONNECTIONS_EACH


def reader(host: str) -> str:
    """Give what stands for one reader: an IPv4 address, or the network of 64 bits that an IPv6 address lies in."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped) if address.ipv4_mapped else address.packed[:8].hex()
    return str(address)


def _head_bytes(scope: Scope) -> int:
    headers = sum(len(name) + len(value) for name, value in scope["headers"])
    return len(scope["raw_path"]) + len(scope["query_string"]) + headers


class Rate:
    """Requests by address: each has a bucket that fills with time and gives one for each request."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Address -> requests left, and when that was."""

    def take(self, host: str, now_s: float) -> bool:
        """Take one request; False where there is none left. `now_s` comes from a clock that only runs forward."""
        name = reader(host)
        left, then_s = self._buckets.pop(name, (BURST_REQUESTS, now_s))
        left = min(BURST_REQUESTS, left + (now_s - then_s) * RATE_REQUESTS_S)
        granted = left >= 1
        self._buckets[name] = left - granted, now_s
        if len(self._buckets) > _MOST_ADDRESSES:
            self._buckets.popitem(last=False)
        return granted


class Limited:
    """An application behind the limits: 503 where too much goes on, 429 for who asks too fast, 431 for long heads."""

    def __init__(self, app: ASGIApp, refused: Callable[[str], None]) -> None:
        """Wrap `app`; `refused` is told the reason of each refusal, one of three words."""
        self._app = app
        self._refused = refused
        self._running: Counter[str] = Counter()
        """Requests by what stands for one reader."""
        self._rate = Rate()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        host = scope["client"][0] if scope.get("client") else ""
        if _BOTH_LENGTHS.issubset(name for name, _ in scope["headers"]):
            # Where a proxy believes the one and we the other, what comes behind is a request that it never saw.
            refusal = self._refuse(400, "head", "two lengths of one body")
            refusal.headers["Connection"] = "close"
            await refusal(scope, receive, send)
        elif _head_bytes(scope) > MOST_HEAD_BYTES:
            await self._refuse(431, "head", "request line and headers are too long")(scope, receive, send)
        elif self._running.total() >= MOST_REQUESTS or not self._may_ask(host):
            await self._refuse(503, "busy", "too many requests at once, come back in a moment")(scope, receive, send)
        elif not is_local(host) and not self._rate.take(host, asyncio.get_running_loop().time()):
            await self._refuse(429, "rate", "too many requests from your address, come back in a moment")(
                scope, receive, send
            )
        else:
            name = reader(host)
            self._running[name] += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._running[name] -= 1
                if not self._running[name]:
                    del self._running[name]

    def _may_ask(self, host: str) -> bool:
        return is_local(host) or self._running[reader(host)] < MOST_REQUESTS_EACH

    def _refuse(self, status: int, word: str, reason: str) -> PlainTextResponse:
        self._refused(word)
        later = {"Retry-After": "1"} if status in (429, 503) else {}
        return PlainTextResponse(f"{status}: {reason}\n", status, {**REFUSED, **later})
