"""Let a Kubo node keep what was published before no longer."""

from collections.abc import Iterable
from typing import Final

from ..cid import Cid
from ..errors import RpcFailed
from ..peers.kubo import KuboRpc

_NOT_PINNED: Final = "not pinned"


def unpin(rpc: KuboRpc, roots: Iterable[Cid]) -> None:
    """Take the pins of roots away, as far as the node has them. Its garbage collector does the rest.

    Raises `PeerError`, `AccessDenied`, `TierFull`.
    """
    for root in roots:
        try:
            rpc.json("pin/rm", str(root))
        except RpcFailed as error:
            if _NOT_PINNED not in str(error.data["reason"]):
                raise
