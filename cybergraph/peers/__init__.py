"""Peers: where blocks come from.

>>> open_peer("http://127.0.0.1:8480").name
'http://127.0.0.1:8480'
"""

from pathlib import Path

from .base import Peer
from .carfile import CarFilePeer
from .http import HttpPeer
from .line import Patience


def open_peer(source: str, *, patience: Patience | None = None) -> Peer:
    """Open what `source` names: the URL of a gateway, or the path of a CAR file.

    Raises `PeerError` for a URL that is not a gateway's; `NotFound`, `MalformedCar`, `TruncatedCar` for a file. A
    gateway is not contacted yet.
    """
    if "://" in source:
        return HttpPeer(source, patience=patience or Patience())
    return CarFilePeer(Path(source))


__all__ = ["CarFilePeer", "HttpPeer", "Patience", "Peer", "open_peer"]
