"""Blocks of a stream that came before what links to them, kept until it comes.

Streams are asked for with parents first, and a gateway may send another order or blocks that nobody asked for. A few
megabytes of either are put up with.
"""

from collections.abc import Callable
from typing import Final

from ..cid import Buffer, Cid

MOST_BYTES: Final = 8 << 20
"""Eight blocks of a large model, whose leaves come before them in a stream that sends parents last."""
MOST_BLOCKS: Final = 2048


class Early:
    """Sound blocks of one stream whose place is not known yet."""

    def __init__(self) -> None:
        self._blocks: dict[Cid, bytes] = {}
        self._size_bytes = 0

    def put(self, cid: Cid, data: Buffer) -> bool:
        """Keep a copy, and say whether there was room for it."""
        if cid in self._blocks:
            return True
        if self._size_bytes + len(data) > MOST_BYTES or len(self._blocks) >= MOST_BLOCKS:
            return False
        self._blocks[cid] = bytes(data)
        self._size_bytes += len(data)
        return True

    def pop(self, belongs: Callable[[Cid], bool]) -> list[tuple[Cid, bytes]]:
        """Give back those that have a place now."""
        found = [(cid, data) for cid, data in self._blocks.items() if belongs(cid)]
        for cid, data in found:
            del self._blocks[cid]
            self._size_bytes -= len(data)
        return found
