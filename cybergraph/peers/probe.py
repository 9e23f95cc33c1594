"""Whether a conversation could be fetched again now: what is only remembered may have gone long ago."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from ..cid import Cid
from ..errors import BlockNotFound, CyberKVError
from ..nodes import Receipt, decode_node
from .base import Peer
from .carfile import CarFilePeer
from .line import Patience

PATIENCE: Final = Patience(connect_s=2.0, read_s=5.0, block_s=5.0, retries=0)
"""Somebody is waiting for room, and a source that does not answer costs no more than that the leaves stay."""
ANSWER_S: Final = 60.0
"""How long an answer counts."""


class Probe:
    """Asks sources whether they have a conversation, and remembers the answer for a minute."""

    def __init__(
        self, open_source: Callable[[str, Patience], Peer], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Say how a source is opened."""
        self._open_source = open_source
        self._clock = clock
        self._answers: dict[tuple[str, Cid | None], tuple[float, bool]] = {}

    def __call__(self, source: str, root: Cid) -> bool:
        """Ask a gateway or a node for the root, or look for it in a CAR file that is whole and names it."""
        now_s = self._clock()
        for key in ((source, None), (source, root)):
            at_s, holds = self._answers.get(key, (now_s - ANSWER_S, False))
            if now_s - at_s < ANSWER_S:
                return holds
        key, holds = (source, root), False
        try:
            with self._open_source(source, PATIENCE) as peer:
                holds = _holds(peer, root)
        except BlockNotFound:
            pass
        except CyberKVError:
            key = source, None  # what fails for one fails for all, and waiting for each would be long
        self._answers[key] = now_s, holds
        return holds


def _holds(peer: Peer, root: Cid) -> bool:
    if isinstance(peer, CarFilePeer) and not (peer.is_whole and root in {*peer.roots, *_signed(peer)}):
        return False
    return any(cid == root for cid, _ in peer.get_many([root]))


def _signed(peer: CarFilePeer) -> Iterator[Cid]:
    """List what the roots of a file sign, as far as they are receipts."""
    for _, data in peer.get_many(peer.roots):
        with suppress(CyberKVError):
            node = decode_node(data)
            if isinstance(node, Receipt):
                yield node.root
