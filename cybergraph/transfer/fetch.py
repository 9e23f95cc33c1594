"""Bring a conversation here: ask for what is missing, check everything, store it so that a stop costs little.

The root is asked for first and stored last. Between the two, every segment is taken in on its own: as one stream
where nothing of it is here and a peer has streams, the rest block by block, from all peers at once. So a root in a
store means a whole conversation, and a fetch that was interrupted finds what it had.

While a peer's bytes come in, those that came before are hashed on two threads, and those before them are written:
leaves go from the socket into page-aligned memory and from there to the disk.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Final, TypeVar

from ..chain import Step, block_cids
from ..cid import Buffer, Cid
from ..errors import BlockNotFound, DigestMismatch, MalformedCbor, MalformedNode, Refused, TierFull
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
from .source import SourceReport
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
    sources: tuple[SourceReport, ...]
    """What each peer gave, and how fast."""


def fetch(
    store: Store,
    index: Index,
    root: Cid,
    peers: Sequence[Peer],
    *,
    expect: Model | None = None,
    progress: Progress = SILENT,
    budget_bytes: int = 64 << 20,
    most_bytes: int | None = None,
    free_bytes: int | None = None,
) -> FetchReport:
    """Make the conversation `root` whole in `store`, moving only what is missing, and index its blocks.

    At most `budget_bytes` of leaves are in memory before they are stored durably, but room for four of the largest.
    All peers are asked at once. A conversation of over `most_bytes` is `Refused` before it moves, and stopped where
    more comes; one whose missing leaves exceed `free_bytes` is `TierFull`. If something is missing that no peer gives,
    raises what says most: `DigestMismatch`, `PeerMisbehaved`, `TruncatedCar`,
    `PeerUnreachable` or `BlockNotFound`; what was verified is kept, and another fetch brings only the rest.
    `MalformedNode` and `LimitExceeded` refuse a conversation that is inconsistent, whoever sends it. With `expect`, a
    conversation of another model is refused by `IdentityMismatch`, which names the first axis, before any block moves.
    """
    return _Fetch(store, index, root, peers, expect, progress, budget_bytes, most_bytes, free_bytes).run()


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
        most_bytes: int | None,
        free_bytes: int | None,
    ) -> None:
        self._store = store
        self._index = index
        self._cid = root
        self._expect = expect
        self._progress = progress
        self._most_bytes = most_bytes
        self._free_bytes = free_bytes
        self._landing = Landing(store, progress, budget_bytes, most_bytes)
        self._desk = Desk(store)
        self._sources = Sources(root, peers, budget_bytes, self._landing.flush)

    def run(self) -> FetchReport:
        try:
            return self._run()
        except (MalformedNode, MalformedCbor):
            self._landing.drop()
            raise
        finally:
            self._sources.close()
            self._landing.close()

    def _run(self) -> FetchReport:
        root_data, root = self._node(self._cid, Conversation)
        model_data, model = self._node(root.model, Model)
        if self._expect is not None:
            require_same(self._expect, model)
        shape = Shape(self._cid, root, model)
        if self._most_bytes is not None and shape.leaf_bytes > self._most_bytes:
            raise Refused(
                f"{self._cid} has {shape.leaf_bytes} bytes, allowed are {self._most_bytes}",
                hint="allow more with --max-bytes",
                cid=str(self._cid), size_bytes=shape.leaf_bytes, most_bytes=self._most_bytes,
            )  # fmt: skip
        self._progress.phase("fetch", blocks_total=shape.nodes_and_leaves, bytes_total=shape.leaf_bytes)
        if self._landing.size_bytes(self._cid) is None:
            self._landing.count(self._cid, root_data)
        if self._landing.size_bytes(root.model) is None:
            self._landing.add(root.model, model_data)
        entries: list[IndexEntry] = []
        for step in self._steps(root, shape):
            entries.append(_entry(step, entries[-1].prefix if entries else None))
        self._tail(shape)
        self._landing.flush()
        self._landing.finish()
        self._store.put_many([(self._cid, root_data)], hashed=True)
        if root.approx is None:  # approximate bytes must never be found by their inputs
            self._index.add_blocks(entries)
        landing = self._landing
        return FetchReport(
            root=self._cid, blocks_total=landing.had + landing.fetched, blocks_had=landing.had,
            blocks_fetched=landing.fetched, bytes_fetched=landing.fetched_bytes, refused=tuple(self._sources.refused),
            sources=self._sources.reports(),
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
            if not (got := self._bring([cid])):
                raise
            data = got[cid]
        node = decode_node(data)
        if not isinstance(node, kind):
            raise _other_type(cid, kind, type(node).TYPE)
        return data, node

    def _bring(self, cids: Sequence[Cid]) -> dict[Cid, bytes]:
        """Bring some blocks, as far as anybody gives them."""
        pile = _Pile(cids)
        self._sources.bring(pile)
        return pile.came

    def _all(self, cids: Sequence[Cid]) -> dict[Cid, bytes]:
        got = self._bring(cids)
        if missing := [cid for cid in cids if cid not in got]:
            raise self._sources.verdict(missing)
        return got

    def _steps(self, root: Conversation, shape: Shape) -> Iterator[Step]:
        """Take in every segment and give its blocks, each checked in its place."""
        pages = pairwise(chain([None], block_cids(self._desk, root)))
        places = ((index, prev, cid) for index, (prev, cid) in enumerate(pages) if cid is not None)
        for start in range(0, len(root.segments), _SEGMENTS_AHEAD):
            ahead = root.segments[start : start + _SEGMENTS_AHEAD]
            lacking = {cid for cid in ahead if self._landing.size_bytes(cid) is None}
            for cid, data in self._all([cid for cid in ahead if cid in lacking]).items():
                self._desk.put_many([(cid, data)], hashed=True)
                self._landing.count(cid, data)
            for index, cid in enumerate(ahead, start):
                blocks = list(islice(places, shape.segment_blocks(index)))
                intake = Intake(shape, self._landing, self._desk, root, cid, blocks)
                self._check_room(root, shape, index, intake)
                self._sources.bring(intake)
                if not intake.done:
                    raise self._sources.verdict(intake.awaited())
                yield from intake.steps
                if cid in lacking:
                    self._landing.add(cid, self._desk.get(cid))
                self._desk.delete_many([cid, *(block for _, _, block in blocks)])

    def _check_room(self, root: Conversation, shape: Shape, index: int, intake: Intake) -> None:
        """Refuse to begin what will not fit, once, at the first segment that is not whole here. Raises `TierFull`."""
        if self._free_bytes is None or intake.done:
            return
        later = range(index + 1, len(root.segments))
        absent = (at for at in later if self._landing.size_bytes(root.segments[at]) is None)
        needed_bytes = intake.lacking_bytes + sum(shape.segment_blocks(at) for at in absent) * shape.block_bytes
        if needed_bytes > self._free_bytes:
            raise TierFull(
                f"{self._cid} needs {needed_bytes} bytes more, and {self._free_bytes} are free",
                hint="free some space or use another --home; what is here already is kept",
                cid=str(self._cid), needed_bytes=needed_bytes, free_bytes=self._free_bytes,
            )  # fmt: skip
        self._free_bytes = None

    def _tail(self, shape: Shape) -> None:
        lacking: dict[Cid, int] = {}
        for leaf, expected_bytes in shape.tail_leaves:
            held_bytes = self._landing.size_bytes(leaf)
            if held_bytes is None:
                held_bytes = lacking.setdefault(leaf, expected_bytes)
            check_leaf(leaf, expected_bytes, held_bytes)
        got = self._bring(list(lacking))
        for leaf, data in got.items():
            check_leaf(leaf, lacking.pop(leaf), len(data))
            self._landing.add(leaf, data)
        if lacking:
            raise self._sources.verdict(list(lacking))


class _Pile:
    """A few blocks that are wanted for themselves."""

    graph = None

    def __init__(self, cids: Sequence[Cid]) -> None:
        self._awaited = dict.fromkeys(cids)
        self.came: dict[Cid, bytes] = {}

    @property
    def done(self) -> bool:
        return not self._awaited

    def awaited(self) -> list[Cid]:
        return list(self._awaited)

    def belongs(self, cid: Cid) -> bool:
        return cid in self._awaited

    def take(self, cid: Cid, data: Buffer) -> bool:
        if cid not in self._awaited:
            return False
        del self._awaited[cid]
        self.came[cid] = bytes(data)
        return True


def _other_type(cid: Cid, kind: type[Node], got: str) -> MalformedNode:
    return MalformedNode(
        f"{cid} is a {got}, not a {kind.TYPE}", field="type", cid=str(cid), expected=kind.TYPE, got=got
    )


def _entry(step: Step, parent: PrefixKey | None) -> IndexEntry:
    block = step.block
    key = prefix_key(block.model, parent, block.tokens)
    # Adopted: who computed it is not known. The index keeps a domain that it knows already.
    return IndexEntry(key, step.cid, block.prev, block.model, UNKNOWN_DOMAIN)
