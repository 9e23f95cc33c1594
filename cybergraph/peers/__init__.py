"""Peers: where blocks come from.

>>> open_peer("http://127.0.0.1:8480").name
'http://127.0.0.1:8480'
"""

import re
from pathlib import Path
from typing import Final

from .base import Peer
from .carfile import CarFilePeer
from .http import HttpPeer
from .kubo import Credential, KuboPeer
from .kubo.address import DEFAULT_ADDRESS
from .line import Patience
from .reach import ANYWHERE, Reach

KUBO: Final = "kubo:"
ROUTED: Final = "routed:"
"""Marks a gateway that a router named: it is asked at public addresses only, now and whenever it is remembered."""

_HOST_PORT: Final = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^:/\s\[\]]+):[0-9]{1,5}/?")


def open_peer(
    source: str, *, patience: Patience | None = None, credential: Credential | None = None, reach: Reach = ANYWHERE
) -> Peer:
    """Open what `source` names: a gateway, a Kubo node, or a CAR file.

    A gateway is named by its URL or as `host:port`; a node as `kubo:` and the address of its RPC, or `kubo:` alone for
    one on this machine, which `credential` opens; a file by its path. `reach` says to which other hosts a gateway may
    redirect. Raises `BadReference` for what is no address;
    `NotFound`, `MalformedCar`, `TruncatedCar` for a file. A gateway or node is not contacted yet.
    """
    if is_file(source):
        return CarFilePeer(Path(source))
    if source.startswith(KUBO):
        address = source.removeprefix(KUBO) or DEFAULT_ADDRESS
        return KuboPeer(address, credential) if patience is None else KuboPeer(address, credential, patience)
    if source.startswith(ROUTED):
        source, reach = source.removeprefix(ROUTED), Reach(anywhere=False, hosts=reach.hosts)
    return HttpPeer(source if "://" in source else f"http://{source}", patience=patience or Patience(), reach=reach)


def is_file(source: str) -> bool:
    """Say whether `source` names a file on this machine, there or not: to ask it for a block tells nobody.

    >>> [is_file(each) for each in ("a.car", "http://a", "127.0.0.1:8480", "kubo:", "routed:https://a")]
    [True, False, False, False, False]
    """
    if source.startswith((KUBO, ROUTED)) or "://" in source:
        return False
    return not _HOST_PORT.fullmatch(source) or Path(source).exists()


__all__ = [
    "KUBO",
    "CarFilePeer",
    "Credential",
    "HttpPeer",
    "KuboPeer",
    "Patience",
    "Peer",
    "Reach",
    "is_file",
    "open_peer",
]
