"""Where blocks come from: one class of few verbs for each kind of peer.

A peer is never believed. `get_many` and `get_dag` hash whatever it sends, so a caller sees right bytes or a typed
error, and may ask the next peer for the rest. `read_many` and `read_dag` are the same without the hashing, into memory
of the caller's choice, for one who hashes many blocks at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import ClassVar, Protocol, Self

from ..cid import Buffer, Cid
from ..errors import BlockNotFound
from ..staging import Room, heap_room


class Prover(Protocol):
    """Somebody who has access to sealed content and shows it to whoever asks."""

    @property
    def root(self) -> Cid:
        """The sealed root that access is to."""

    @property
    def scheme(self) -> str:
        """Name of the scheme of proof."""

    def answer(self, challenge: bytes, audience: str) -> bytes:
        """Prove access to `audience`, the peer by the name that the user gave it. Raises `ProofRejected`, `Corrupt`."""


class Peer(ABC):
    """A source of blocks."""

    has_dag: ClassVar[bool] = False
    """Whether `get_dag` is offered."""
    whole_dags: ClassVar[bool] = False
    """Whether this peer is a finished file: if it holds a root and lacks a part of it, it was cut short."""
    name: str
    """A URL or path, for messages."""

    def get_many(self, cids: Sequence[Cid]) -> Iterator[tuple[Cid, Buffer]]:
        """Give those of `cids` that the peer holds, in any order, each once and each hashed.

        Raises as `read_many`, and `DigestMismatch`.
        """
        return _checked(self.read_many(cids, heap_room))

    def get_dag(self, cid: Cid) -> Iterator[tuple[Cid, Buffer]]:
        """Give everything reachable from `cid` as one stream, each block hashed; a sound peer gives parents first.

        Raises as `read_dag`, and `DigestMismatch`. Only where `has_dag`.
        """
        return _checked(self.read_dag(cid, heap_room))

    @abstractmethod
    def read_many(self, cids: Sequence[Cid], room: Room) -> Iterator[tuple[Cid, Buffer]]:
        """Give those of `cids` that the peer claims to hold, unhashed, in any order and each once.

        Leaves come in memory from `room`. After the rest was given, raises `BlockNotFound` with the lacking CIDs in its
        `cids` (as text), or `TruncatedCar` where the source ends early. Raises at once: `PeerUnreachable`,
        `PeerMisbehaved`, `LimitExceeded`.
        """

    def read_dag(self, cid: Cid, room: Room) -> Iterator[tuple[Cid, Buffer]]:
        """Give what the peer claims to be reachable from `cid` as one stream, unhashed. Only where `has_dag`.

        The end of the iterator proves nothing: the caller must know what belongs to the graph. Raises as `read_many`,
        `MalformedCar`, and `NotOffered` where the peer turns out to send single blocks only.
        """
        raise NotImplementedError

    def prove_with(self, prover: Prover) -> None:  # noqa: B027  # most peers never ask
        """Answer with `prover` if this peer asks for a proof of access. Called before blocks are asked for."""

    def abort(self) -> None:  # noqa: B027  # a peer that never waits has nothing to do
        """Make what is under way in other threads fail soon. The peer may be asked again."""

    @abstractmethod
    def close(self) -> None:
        """Release files, connections and threads. Requests under way fail."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _checked(blocks: Iterator[tuple[Cid, Buffer]]) -> Iterator[tuple[Cid, Buffer]]:
    for cid, data in blocks:
        cid.verify(data)
        yield cid, data


def not_held(name: str, cids: Sequence[Cid | str]) -> BlockNotFound:
    """Build the error for blocks that a peer lacks."""
    more = f" and {len(cids) - 1} more" if len(cids) > 1 else ""
    return BlockNotFound(f"{name} does not hold {cids[0]}{more}", peer=name, cids=[str(cid) for cid in cids])
