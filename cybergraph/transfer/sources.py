"""Several peers asked in turn: the next one for what the last one did not give, and a liar never again."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from ..cid import Cid
from ..errors import (
    BlockNotFound,
    Corrupt,
    CyberKVError,
    DigestMismatch,
    LimitExceeded,
    MalformedCar,
    PeerMisbehaved,
    PeerUnreachable,
    TruncatedCar,
)
from ..peers.base import Peer

_TELLING: Final = (
    DigestMismatch, PeerMisbehaved, LimitExceeded, Corrupt, PeerUnreachable, BlockNotFound, CyberKVError,
)  # fmt: skip
"""Where a block is missing for several reasons, the user learns the first of these."""
_LIES: Final = (DigestMismatch, LimitExceeded)
_SHOWN_CIDS: Final = 20


class Refusal(NamedTuple):
    """Why a peer was not taken at its word."""

    peer: str
    cid: Cid
    """What was being asked for."""
    reason: str


class Wanting(Protocol):
    """Knows what belongs to a graph that is streaming in."""

    @property
    def done(self) -> bool:
        """Whether everything is here."""

    def belongs(self, cid: Cid) -> bool:
        """Say whether a block is part of the graph, as far as its parents are known."""


class Sources:
    """The peers of one fetch."""

    def __init__(self, root: Cid, peers: Sequence[Peer]) -> None:
        self._root = root
        self._peers = list(peers)
        self._streams = [peer for peer in peers if peer.has_dag]
        self._holders: list[Peer] = []
        """Peers that gave the root."""
        self._errors: list[tuple[str, CyberKVError]] = []
        self.refused: list[Refusal] = []
        """Lies, truncations and failures, in order. A peer that merely lacks a block is not in it."""

    def blocks(self, cids: Sequence[Cid]) -> Iterator[tuple[Cid, bytes]]:
        """Give those of `cids` that some peer holds, each once. What is missing after it is for `verdict`."""
        wanted = dict.fromkeys(cids)
        for peer in list(self._peers):
            if wanted:
                yield from self._blocks_from(peer, wanted)

    def _blocks_from(self, peer: Peer, wanted: dict[Cid, None]) -> Iterator[tuple[Cid, bytes]]:
        asked = next(iter(wanted))
        try:
            for cid, data in peer.get_many(list(wanted)):
                if cid not in wanted:
                    raise _unasked(peer, cid)
                del wanted[cid]
                if cid == self._root:
                    self._holders.append(peer)
                yield cid, data
        except BlockNotFound as error:
            if peer.whole_dags and peer in self._holders:
                cut = TruncatedCar(f"{peer.name} ends before the conversation is complete", peer=peer.name)
                self._note(peer, asked, cut)
            else:
                self._errors.append((peer.name, error))
        except (TruncatedCar, MalformedCar) as error:
            self._note(peer, asked, error)  # a file that ends badly may still hold other things
        except CyberKVError as error:
            self._note(peer, asked, error)
            self._drop(peer)

    def graph(self, cid: Cid, wanting: Wanting) -> Iterator[tuple[Cid, bytes]]:
        """Give what the first streaming peer sends of the graph below `cid`; the rest is the caller's to ask for.

        A peer whose stream fails is not asked for streams again; one that sent wrong bytes, for nothing again.
        """
        if not self._streams:
            return
        peer = self._streams[0]
        try:
            for found, data in peer.get_dag(cid):
                if not wanting.belongs(found):
                    raise _unasked(peer, found)
                yield found, data
            if not wanting.done:
                raise TruncatedCar(f"{peer.name} ends the stream of {cid} before it is complete", peer=peer.name)
        except BlockNotFound as error:
            self._errors.append((peer.name, error))
            self._streams.remove(peer)
        except CyberKVError as error:
            self._note(peer, cid, error)
            self._streams.remove(peer)
            if isinstance(error, _LIES):
                self._drop(peer)

    def _drop(self, peer: Peer) -> None:
        self._peers.remove(peer)
        if peer in self._streams:
            self._streams.remove(peer)

    def _note(self, peer: Peer, cid: Cid, error: CyberKVError) -> None:
        self._errors.append((peer.name, error))
        self.refused.append(Refusal(peer.name, cid, error.message))

    def verdict(self, missing: Sequence[Cid]) -> CyberKVError:
        """Build the most telling error for blocks that no peer gave; its data lists them and every refusal."""
        kept = "what was verified is kept; fetch again to bring only the rest"
        data = {
            "cid": str(missing[0]),
            "missing": [str(cid) for cid in missing[:_SHOWN_CIDS]],
            "count": len(missing),
            "refused": [each._asdict() | {"cid": str(each.cid)} for each in self.refused],
        }
        for kind in _TELLING:
            for name, error in self._errors:
                if isinstance(error, kind):
                    reason = error.message if name in error.message else f"{error.message} (from {name})"
                    hint = f"{error.hint}; {kept}" if error.hint else kept
                    return type(error)(f"{missing[0]} was not received: {reason}", hint=hint, **data | {"peer": name})
        return BlockNotFound(f"{missing[0]} is not here, and no peer was named", hint="name one with --from", **data)


def _unasked(peer: Peer, cid: Cid) -> PeerMisbehaved:
    return PeerMisbehaved(f"{peer.name} sends {cid}, which was not asked for", peer=peer.name, cid=str(cid))
