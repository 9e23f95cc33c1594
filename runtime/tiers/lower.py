"""The two tiers outside memory: the store (L2) and peers (L3). What comes from them is verified on its way in."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from ...cybergraph.chain import misfit
from ...cybergraph.cid import Buffer, Cid
from ...cybergraph.errors import BlockNotFound, Corrupt, CyberKVError, DigestMismatch, NotFound, PeerError, TierFull
from ...cybergraph.nodes import Block
from ...cybergraph.store.base import Store, check_size
from ...cybergraph.verdict import Tier
from ..finite import require_finite
from ..geometry import Geometry
from ..pool import LeafSource
from .lease import Miss
from .moves import MoveLog, Outcome
from .witness import Beliefs, Event, Kept, witness

BATCH_BYTES: Final = 8 << 20
"""What came from a peer is stored in batches of about this."""

Fill: TypeAlias = Callable[[LeafSource, Sequence[Sequence[Cid]]], None]
"""Brings the leaves of some blocks from a source to where they are wanted."""


class Source(Protocol):
    """Gives blocks by CID: a `Peer` is one."""

    name: str

    def get_many(self, cids: Sequence[Cid]) -> Iterator[tuple[Cid, Buffer]]:
        """Give those of `cids` that are there, in any order, each once and each checked against its CID.

        Raises as `Peer.get_many`: `BlockNotFound` after the rest was given; `PeerError`; `Corrupt`.
        """


def drop_failed(store: Store, position_start: int, error: CyberKVError) -> Miss:
    """Turn a failed load into a miss. Effects: a damaged block leaves the store, and a good one can take its place.

    One that cannot be read, or whose bytes are what their hash says and still do not fit here, stays.
    """
    cid = error.data.get("cid")
    if isinstance(error, DigestMismatch) and cid:
        store.drop_damaged([Cid.parse(str(cid))])
    way_back = "; if it was fetched, `cyberkv fetch` brings it back" if isinstance(error, NotFound) else ""
    return Miss(position_start, error.message + way_back, str(cid) if cid else None, error)


@dataclass(frozen=True, slots=True)
class Over:
    """Verified leaves that no store took, before those of a store."""

    loose: Mapping[Cid, Buffer]
    store: Store

    def get_into(self, cids: Sequence[Cid], out: Sequence[memoryview]) -> None:
        """See `LeafSource`."""
        pairs = list(zip(cids, out, strict=True))
        for leaf, view in pairs:
            if (data := self.loose.get(leaf)) is not None:
                check_size(leaf, memoryview(data).nbytes, view)
                view[:] = memoryview(data).cast("B")
        kept = [pair for pair in pairs if pair[0] not in self.loose]
        self.store.get_into([leaf for leaf, _ in kept], [view for _, view in kept])


@dataclass(frozen=True, slots=True)
class Examined:
    """Leaves of which some were not computed here: their numbers are looked at, too."""

    source: LeafSource
    geometry: Geometry
    groups: Mapping[Cid, int]
    """Leaf -> its layer group, of those that are looked at."""

    def get_into(self, cids: Sequence[Cid], out: Sequence[memoryview]) -> None:
        """See `LeafSource`. Raises `NotFinite` for the first that nothing can go on from."""
        self.source.get_into(cids, out)
        for leaf, view in zip(cids, out, strict=True):
            if (group := self.groups.get(leaf)) is not None:
                require_finite(self.geometry, group, leaf, view)


def examined(source: LeafSource, geometry: Geometry, foreign: Sequence[Block]) -> LeafSource:
    """Give a source that looks at the numbers of `foreign` blocks, too."""
    groups = {leaf: group for node in foreign for group, leaf in enumerate(node.kv)}
    return Examined(source, geometry, groups) if groups else source


@dataclass(slots=True)
class Loaded:
    """What came of a run of blocks."""

    nodes: list[Block]
    """Of the leading blocks whose rows hold verified bytes."""
    miss: Miss | None
    fetched: dict[Cid, int] = field(default_factory=dict)
    """Block -> bytes of its leaves that came from peers."""
    borrowed: set[Cid] = field(default_factory=set)
    """Blocks with leaves that the store had no room for."""


class Lower:
    """Reads blocks of one model from a store, and what that lacks from peers, by way of the store."""

    def __init__(
        self,
        store: Store,
        model_cid: Cid,
        *,
        geometry: Geometry,
        sources: Sequence[Source],
        may_ask: Callable[[Cid], bool],
        own: Callable[[Sequence[Cid]], Collection[Cid]],
        log: MoveLog,
    ) -> None:
        """`may_ask` says of a block whether its name, and those of its leaves, may be told to `sources`.

        `own` gives those of some blocks that were computed here; the numbers of others are looked at.
        """
        self.store, self.sources = store, list(sources)
        self.peers = Beliefs()
        """What peers have."""
        self._model_cid, self._geometry, self._size = model_cid, geometry, geometry.block_size
        self.may_ask, self._own, self._log = may_ask, own, log

    def misfit(self, node: Block, prev: Cid | None, tokens: Sequence[int] | None) -> str | None:
        """Name the first field in which a block does not belong where it is wanted; None where it does."""
        window = node.tokens if tokens is None else tokens
        if len(node.tokens) != self._size:
            return "tokens"
        leaves = self._geometry.leaves_per_block
        return misfit(node, model=self._model_cid, prev=prev, tokens=window, leaves=leaves)

    def bind(
        self, blocks: Sequence[Cid], tokens: Sequence[int] | None, prev: Cid | None, position: int, tick: int
    ) -> tuple[list[Block], Miss | None, set[Cid]]:
        """Read block nodes for as long as each names this model, the block before it and these tokens.

        Given last: the blocks whose nodes the store had no room for.
        """
        bound: list[Block] = []
        loose: set[Cid] = set()
        for i, cid in enumerate(blocks):
            at = position + i * self._size
            try:
                node = Block.decode(self._node(blocks[i:], tick, loose), verify=cid)
            except (NotFound, Corrupt) as error:
                return bound, drop_failed(self.store, at, error), loose
            window = None if tokens is None else tokens[i * self._size : (i + 1) * self._size]
            if field_name := self.misfit(node, prev, window):
                reason = f"the index names a block whose field {field_name!r} does not fit"
                return bound, Miss(at, reason, str(cid)), loose
            bound.append(node)
            prev = cid
        return bound, None, loose

    def _node(self, blocks: Sequence[Cid], tick: int, loose: set[Cid]) -> bytes:
        """Read the first of some blocks; where it is absent, all that are absent are asked of peers at once."""
        try:
            return self.store.get(blocks[0])
        except NotFound:
            if not self.sources:
                raise
            unstored = self._fetch({cid: [cid] for cid in self.store.missing(blocks)}, tick, {})
            if blocks[0] not in unstored:
                return self.store.get(blocks[0])
            loose.add(blocks[0])
            return bytes(unstored[blocks[0]])

    def read(self, blocks: Sequence[Cid], nodes: list[Block], fill: Fill, position: int, tick: int) -> Loaded:
        """Read the leaves of bound blocks to where `fill` puts them, as one batch.

        `fill` takes a source and the leaves of the leading blocks that are still wanted, and raises what the source
        does. Where the blocks go that did not come, nothing is to be relied on.
        """
        loaded, loose = Loaded(nodes, None), dict[Cid, Buffer]()
        tried, foreign = not self.sources, self._foreign(blocks, nodes)
        while loaded.nodes:
            try:
                source = Over(loose, self.store) if loose else self.store
                fill(examined(source, self._geometry, foreign), [node.kv for node in loaded.nodes])
                break
            except (NotFound, Corrupt) as error:
                failed = str(error.data.get("cid"))
                good = next((i for i, node in enumerate(loaded.nodes) if failed in map(str, node.kv)), 0)
                loaded.miss = drop_failed(self.store, position + good * self._size, error)
                if not tried:
                    tried = True
                    absent = set(self.store.missing([leaf for node in loaded.nodes for leaf in node.kv]))
                    wanted = {
                        cid: [leaf for leaf in node.kv if leaf in absent]
                        for cid, node in zip(blocks, loaded.nodes, strict=False)
                    }
                    loose = self._fetch({cid: each for cid, each in wanted.items() if each}, tick, loaded.fetched)
                    if loaded.fetched:
                        loaded.miss = None
                        continue
                self._log.add(blocks[good], Tier.L2, Tier.L0, 0, _outcome(error))
                loaded.nodes = loaded.nodes[:good]
        loaded.borrowed = {
            cid for cid, node in zip(blocks, loaded.nodes, strict=False) if not loose.keys().isdisjoint(node.kv)
        }
        return loaded

    def reading(self, blocks: Sequence[Cid], nodes: Sequence[Block]) -> LeafSource:
        """Give the store as it is read for bound blocks."""
        return examined(self.store, self._geometry, self._foreign(blocks, nodes))

    def _foreign(self, blocks: Sequence[Cid], nodes: Sequence[Block]) -> list[Block]:
        own = self._own(blocks[: len(nodes)])
        return [node for cid, node in zip(blocks, nodes, strict=False) if cid not in own]

    def missed(self, block: Cid, position_start: int, error: CyberKVError) -> Miss:
        """Note that the store did not give a block, as `drop_failed` does."""
        self._log.add(block, Tier.L2, Tier.L0, 0, _outcome(error))
        return drop_failed(self.store, position_start, error)

    def _fetch(self, wanted: dict[Cid, list[Cid]], tick: int, fetched: dict[Cid, int]) -> dict[Cid, Buffer]:
        """Ask peers for parts of blocks, one peer after the other, and store what they give.

        Asked is only what may be named. Returns what the store had no room for; `fetched` counts bytes by block.
        """
        owner = {part: block for block, parts in wanted.items() if self.may_ask(block) for part in parts}
        lacking, loose, came = set(owner), dict[Cid, Buffer](), dict[Cid, int]()
        for source in self.sources:
            if not lacking:
                break
            outcome = Outcome.MISSED
            try:
                for batch in _batches(source.get_many([part for part in owner if part in lacking])):
                    asked = {part: data for part, data in batch if part in lacking}
                    try:
                        self.store.put_many(asked.items(), hashed=True)
                    except TierFull:
                        loose |= {part: bytes(data) for part, data in asked.items()}
                    lacking -= asked.keys()
                    for part, data in asked.items():
                        came[owner[part]] = came.get(owner[part], 0) + memoryview(data).nbytes
            except BlockNotFound:
                pass
            except (PeerError, Corrupt) as error:
                outcome = _outcome(error)
            for block in sorted({owner[part] for part in lacking}):
                self._log.add(block, Tier.L3, Tier.L2, 0, outcome)
                self.peers.note(_kept(outcome), block)
        unstored = {owner[part] for part in loose}
        for block, size_bytes in came.items():
            self.peers.learn(block, tick)
            if wanted[block] != [block]:  # nodes are read to know what to move, and are no part of it
                self._log.add(block, Tier.L3, Tier.L0 if block in unstored else Tier.L2, size_bytes)
                fetched[block] = fetched.get(block, 0) + size_bytes
        return loose


def _batches(blocks: Iterator[tuple[Cid, Buffer]]) -> Iterator[list[tuple[Cid, Buffer]]]:
    """Cut a stream into batches; what came before it broke off is given first."""
    batch: list[tuple[Cid, Buffer]] = []
    size_bytes = 0
    try:
        for cid, data in blocks:
            batch.append((cid, data))
            size_bytes += memoryview(data).nbytes
            if size_bytes >= BATCH_BYTES:
                yield batch
                batch, size_bytes = [], 0
    except (BlockNotFound, PeerError, Corrupt):
        yield batch
        raise
    yield batch


def _outcome(error: CyberKVError) -> Outcome:
    if isinstance(error, NotFound):
        return Outcome.MISSED
    return Outcome.UNKNOWN if isinstance(error, PeerError) else Outcome.FAULT


def _kept(outcome: Outcome) -> Kept:
    event = Event.PEER_NOT_FOUND if outcome is Outcome.MISSED else Event.PEER_TIMEOUT
    return witness(event).tiers[Tier.L3]
