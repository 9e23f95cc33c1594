"""Bring a conversation here: ask for what is missing, check everything, store it so that a stop costs little.

The root is asked for first and stored last. Between the two, every segment is taken in on its own: as one stream
where nothing of it is here and the peer has streams, else block by block. So a root in a store means a whole
conversation, and a fetch that was interrupted finds what it had.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

from ..chain import Step, block_cids, walk
from ..cid import Cid
from ..errors import BlockNotFound, DigestMismatch, MalformedCbor, MalformedNode
from ..identity import require_same
from ..index import UNKNOWN_DOMAIN, Index, IndexEntry
from ..nodes import Conversation, Model, Node, decode_node
from ..peers.base import Peer
from ..prefix import PrefixKey, prefix_key
from ..store.base import Store
from .intake import Desk, Intake
from .landing import Landing
from .progress import SILENT, Progress
from .shape import Shape, check_leaf
from .sources import Refusal, Sources

_SEGMENTS_AHEAD: Final = 32
"""Segment nodes asked for at once: under a megabyte, and one round trip for 130,000 tokens."""

N = TypeVar("N", bound=Node)


@dataclass(frozen=True)
class FetchReport:
    """What a fetch did. Blocks are nodes and leaves, each CID counted once: had + fetched = total."""

    root: Cid
    blocks_total: int
    blocks_had: int
    blocks_fetched: int
    bytes_fetched: int
    """Bytes of the fetched blocks, without framing."""
    refused: tuple[Refusal, ...]
    """What peers were caught at on the way; the fetch succeeded nevertheless."""


def fetch(
    store: Store,
    index: Index,
    root: Cid,
    peers: Sequence[Peer],
    *,
    expect: Model | None = None,
    progress: Progress = SILENT,
    budget_bytes: int = 64 << 20,
) -> FetchReport:
    """Make the conversation `root` whole in `store`, moving only what is missing, and index its blocks.

    At most `budget_bytes` wait in memory before they are stored durably. Peers are asked in order. If something
    is still missing after the last, raises what says most: `DigestMismatch`, `PeerMisbehaved`, `TruncatedCar`,
    `PeerUnreachable` or `BlockNotFound`; what was verified is kept, and another fetch brings only the rest.
    `MalformedNode` and `LimitExceeded` refuse a conversation that is inconsistent, whoever sends it. With `expect`, a
    conversation of another model is refused by `IdentityMismatch`, which names the first axis, before any block moves.
    """
    return _Fetch(store, index, root, peers, expect, progress, budget_bytes).run()


class _Fetch:
    def __init__(
        self,
        store: Store,
        index: Index,
        root: Cid,
        peers: Sequence[Peer],
        expect: Model | None,
        progress: Progress,
        budget_bytes: int,
    ) -> None:
        self._store = store
        self._index = index
        self._cid = root
        self._expect = expect
        self._sources = Sources(root, peers)
        self._progress = progress
        self._landing = Landing(store, progress, budget_bytes)
        self._desk = Desk(store)

    def run(self) -> FetchReport:
        root_data, root = self._node(self._cid, Conversation)
        model_data, model = self._node(root.model, Model)
        if self._expect is not None:
            require_same(self._expect, model)
        shape = Shape(self._cid, root, model)
        self._progress.phase("fetch", blocks_total=shape.nodes_and_leaves, bytes_total=shape.leaf_bytes)
        if self._landing.size_bytes(self._cid) is None:
            self._landing.count(self._cid, root_data)
        if self._landing.size_bytes(root.model) is None:
            self._landing.add(root.model, model_data)
        entries: list[IndexEntry] = []
        try:
            for step in self._steps(root, shape):
                entries.append(_entry(step, entries[-1].prefix if entries else None))
            self._tail(shape)
        except (MalformedNode, MalformedCbor):
            self._landing.drop()
            raise
        finally:
            self._landing.flush()
        self._store.put_many([(self._cid, root_data)], hashed=True)
        if root.approx is None:  # approximate bytes must never be found by their inputs
            self._index.add_blocks(entries)
        landing = self._landing
        return FetchReport(
            root=self._cid, blocks_total=landing.had + landing.fetched, blocks_had=landing.had,
            blocks_fetched=landing.fetched, bytes_fetched=landing.fetched_bytes, refused=tuple(self._sources.refused),
        )  # fmt: skip

    def _node(self, cid: Cid, kind: type[N]) -> tuple[bytes, N]:
        if cid.codec == "raw":
            raise _other_type(cid, kind, "leaf")
        try:
            data = self._store.get(cid)
        except BlockNotFound:
            data = self._all([cid])[cid]
        except DigestMismatch:
            # A damaged node of our own is replaced like one that is absent, if somebody has it.
            if not (got := dict(self._sources.blocks([cid]))):
                raise
            data = got[cid]
        node = decode_node(data)
        if not isinstance(node, kind):
            raise _other_type(cid, kind, type(node).TYPE)
        return data, node

    def _all(self, cids: Sequence[Cid]) -> dict[Cid, bytes]:
        got = dict(self._sources.blocks(cids))
        if missing := [cid for cid in cids if cid not in got]:
            raise self._sources.verdict(missing)
        return got

    def _steps(self, root: Conversation, shape: Shape) -> Iterator[Step]:
        """Take in every segment and give its blocks, each checked in its place."""
        pages, steps = block_cids(self._desk, root), walk(self._desk, root)
        for start in range(0, len(root.segments), _SEGMENTS_AHEAD):
            ahead = root.segments[start : start + _SEGMENTS_AHEAD]
            lacking = {cid for cid in ahead if self._landing.size_bytes(cid) is None}
            for cid, data in self._all([cid for cid in ahead if cid in lacking]).items():
                self._desk.put_many([(cid, data)], hashed=True)
                self._landing.count(cid, data)
            for index, cid in enumerate(ahead, start):
                blocks = list(islice(pages, shape.segment_blocks(index)))
                yield from self._segment(
                    cid, Intake(shape, self._landing, self._desk, blocks, steps, (cid, root.model))
                )
                if cid in lacking:
                    self._landing.add(cid, self._desk.get(cid))
                self._desk.delete_many([cid, *blocks])

    def _segment(self, cid: Cid, intake: Intake) -> list[Step]:
        if intake.fresh:
            for found, data in self._sources.graph(cid, intake):
                intake.take(found, data)
        for found, data in self._sources.blocks(intake.nodes):
            intake.take(found, data)
        for found, data in self._sources.blocks(intake.leaves):
            intake.take(found, data)
        if not intake.done:
            raise self._sources.verdict(intake.nodes + intake.leaves)
        return intake.passed

    def _tail(self, shape: Shape) -> None:
        lacking: dict[Cid, int] = {}
        for leaf, expected_bytes in shape.tail_leaves:
            held_bytes = self._landing.size_bytes(leaf)
            if held_bytes is None:
                held_bytes = lacking.setdefault(leaf, expected_bytes)
            check_leaf(leaf, expected_bytes, held_bytes)
        for leaf, data in self._sources.blocks(list(lacking)):
            check_leaf(leaf, lacking.pop(leaf), len(data))
            self._landing.add(leaf, data)
        if lacking:
            raise self._sources.verdict(list(lacking))


def _other_type(cid: Cid, kind: type[Node], got: str) -> MalformedNode:
    return MalformedNode(
        f"{cid} is a {got}, not a {kind.TYPE}", field="type", cid=str(cid), expected=kind.TYPE, got=got
    )


def _entry(step: Step, parent: PrefixKey | None) -> IndexEntry:
    block = step.block
    key = prefix_key(block.model, parent, block.tokens)
    # Adopted: who computed it is not known. The index keeps a domain that it knows already.
    return IndexEntry(key, step.cid, block.prev, block.model, UNKNOWN_DOMAIN)
