"""Where blocks come from: one class of few verbs for each kind of peer.

A peer is never believed. Whatever it sends is hashed before it leaves this layer, so a caller sees right bytes or a
typed error, and may ask the next peer for the rest.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import ClassVar, Self

from ..cid import Cid
from ..errors import BlockNotFound
from ..limits import MAX_LEAF_BYTES, MAX_NODE_BYTES


class Peer(ABC):
    """A source of blocks."""

    has_dag: ClassVar[bool] = False
    """Whether `get_dag` is offered."""
    whole_dags: ClassVar[bool] = False
    """Whether this peer is a finished file: if it holds a root and lacks a part of it, it was cut short."""
    name: str
    """A URL or path, for messages."""

    @abstractmethod
    def get_many(self, cids: Sequence[Cid]) -> Iterator[tuple[Cid, bytes]]:
        """Give those of `cids` that the peer holds, in any order, each once and each hashed.

        Memory stays within a few blocks. After the rest was given, raises `BlockNotFound` with the lacking CIDs in
        its `cids` (as text), or `TruncatedCar` where the source ends early. Raises at once: `DigestMismatch`,
        `PeerUnreachable`, `PeerMisbehaved`, `LimitExceeded`.
        """

    def get_dag(self, cid: Cid) -> Iterator[tuple[Cid, bytes]]:
        """Give everything reachable from `cid` as one stream, each block hashed, parents before what they link to.

        The end of the iterator proves nothing: the caller must know what belongs to the graph. Raises as `get_many`,
        and `MalformedCar`. Only where `has_dag`.
        """
        raise NotImplementedError

    @abstractmethod
    def close(self) -> None:
        """Release files, connections and threads. Requests under way fail."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def not_held(name: str, cids: Sequence[Cid]) -> BlockNotFound:
    """Build the error for blocks that a peer lacks."""
    more = f" and {len(cids) - 1} more" if len(cids) > 1 else ""
    return BlockNotFound(f"{name} does not hold {cids[0]}{more}", peer=name, cids=[str(cid) for cid in cids])


def most_bytes(cid: Cid) -> int:
    """Give the largest block that may stand behind a CID of this codec."""
    return MAX_LEAF_BYTES if cid.codec == "raw" else MAX_NODE_BYTES
