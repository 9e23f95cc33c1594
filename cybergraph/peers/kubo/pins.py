"""What a node keeps for CyberKV: its pins by name."""

from dataclasses import dataclass
from typing import Final

from ...errors import MalformedCid, PeerMisbehaved
from ...foreign import AnyCid, parse_cid
from .rpc import KuboRpc

PIN_PREFIX: Final = "cyberkv/"
"""How the names of pins begin that `publish --kubo` sets."""
MOST_PINS: Final = 1 << 16


@dataclass(frozen=True)
class KuboPin:
    """A recursive pin."""

    cid: AnyCid
    name: str


def named_pins(rpc: KuboRpc) -> list[KuboPin]:
    """List the recursive pins of a node whose names begin with `PIN_PREFIX`, by name.

    Whoever else uses the node may have given such names, too. Raises `PeerError`, `AccessDenied`.
    """
    options = {"type": "recursive", "names": "true", "name": PIN_PREFIX, "stream": "true"}
    pins: list[KuboPin] = []
    for line in rpc.lines("pin/ls", options=options):
        name = line.get("Name")
        if not isinstance(name, str) or not name.startswith(PIN_PREFIX):
            continue
        if len(pins) == MOST_PINS:
            raise PeerMisbehaved(f"{rpc.name} names over {MOST_PINS} pins", peer=rpc.name)
        try:
            pins.append(KuboPin(parse_cid(str(line.get("Cid"))), name))
        except MalformedCid as error:
            raise PeerMisbehaved(f"{rpc.name} lists a pin on what is no CID: {error}", peer=rpc.name) from error
        rpc.renew()
    return sorted(pins, key=lambda pin: (pin.name, pin.cid))
