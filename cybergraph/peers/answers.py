"""What the answers of gateways say of themselves: their type, how long to wait, and that they were cut short."""

import re
from datetime import datetime
from email.utils import parsedate_to_datetime
from http.client import IncompleteRead
from typing import Any, Final

from ..errors import PeerMisbehaved, TruncatedCar
from .line import Answer, Body

RAW: Final = "application/vnd.ipld.raw"
CAR: Final = "application/vnd.ipld.car"
WAIT_S: Final = 1.0
"""Wait before a busy peer is asked again, where it does not say how long."""

_MARKER: Final = re.compile(rb"\[Gateway Error: ([^\]]{1,120})\]?")
"""What gateways write behind a stream that they cannot finish, since its status has gone out long before."""
_TAIL_BYTES: Final = 160
_PAGE_BYTES: Final = 4096
_TITLE: Final = re.compile(rb"<title[^>]*>\s*([^<]{1,80})", re.IGNORECASE)


class CarBody(Body):
    """A body that says at which byte of the stream it was cut, and what a gateway wrote behind it."""

    def __init__(self, answer: Answer, name: str) -> None:
        super().__init__(answer)
        self._name = name
        self._at = 0
        self._tail = b""

    def readinto(self, buffer: Any, /) -> int:
        """See `Body`. Raises `TruncatedCar` instead of `IncompleteRead`."""
        try:
            count = super().readinto(buffer)
        except IncompleteRead as error:
            raise TruncatedCar(f"{self._name} ends its CAR stream after {self._at} bytes", offset=self._at) from error
        self._at += count
        self._tail = (self._tail + bytes(buffer[max(0, count - _TAIL_BYTES) : count]))[-_TAIL_BYTES:]
        return count

    def said(self) -> TruncatedCar | None:
        """Build the error that the gateway itself tells of at the end of what was read so far, if it does."""
        found = _MARKER.search(self._tail)
        if found is None:
            return None
        words = found[1].decode(errors="replace")
        return TruncatedCar(f"{self._name} says of its CAR stream: {words!r}", offset=self._at, peer=self._name)


def check_type(answer: Answer, expected: str, name: str) -> None:
    """Refuse an answer that is of another type than `expected`, or compressed. Raises `PeerMisbehaved`."""
    got = answer.getheader("content-type", "")
    coded = answer.getheader("content-encoding", "identity").strip().lower()
    kind = got.partition(";")[0].strip().lower()
    data = {"peer": name, "expected": expected, "got": got[:80]}
    if kind == "text/html":
        title = _TITLE.search(answer.read(_PAGE_BYTES))
        titled = f" titled {title[1].decode(errors='replace').strip()!r}" if title else ""
        raise PeerMisbehaved(
            f"{name} answers with a web page ({got!r:.80}){titled} instead of {expected}",
            hint="it is no trustless IPFS gateway, or something on the way wants you to log in first", **data,
        )  # fmt: skip
    if kind != expected:
        raise PeerMisbehaved(
            f"{name} answers with {got!r:.80} instead of {expected}",
            hint="this address is not a trustless IPFS gateway", **data,
        )  # fmt: skip
    if coded != "identity":
        raise PeerMisbehaved(
            f"{name} compresses its answer ({coded!r:.40}), which was not asked for",
            hint="something on the way changes answers; turn compression off there", **data,
        )  # fmt: skip


def retry_after_s(answer: Answer) -> float:
    """Give how long a busy peer asks us to wait: seconds, or a time by its own clock."""
    text = answer.getheader("retry-after", "").strip()
    if text.isascii() and text.isdecimal():
        return float(text)
    until, now = _time(text), _time(answer.getheader("date", ""))
    return max(0.0, (until - now).total_seconds()) if until and now else WAIT_S


def _time(text: str) -> datetime | None:
    try:
        time = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # a year, or a distance from Greenwich, beyond all numbers
        return None
    return time if time.tzinfo else None
