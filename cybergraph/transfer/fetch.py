"""Bring conversations here: ask for what is missing, check everything, store it so that a stop costs little.

Each root is stored last, so a root in a store means a whole conversation, and a fetch that was interrupted finds what
it had. Several conversations take turns, a segment each: whose next tokens are nearest to its beginning, where a model
that loads it starts, has the next turn. What they have in common is stored by the first and found by the others.

A peer's bytes are hashed as they come in, those of a slow hash on two other threads, while what came before is
written: leaves go from the socket into page-aligned memory and from there to the disk.
"""

import heapq
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType

from ..cid import Cid
from ..errors import MalformedCbor, MalformedNode
from ..index import UNKNOWN_DOMAIN, Index, signed_domain
from ..nodes import Conversation, Model
from ..peers.base import Peer
from ..store.base import Store
from .head import Begin, Head, Shared
from .intake import Desk
from .landing import Landing
from .progress import SILENT, Progress
from .source import SourceReport
from .sources import Refusal, Sources


def nothing(_cid: Cid, _root: Conversation) -> None:
    """Hear and do nothing."""


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
    """What peers were caught at on the way; the fetch succeeded nevertheless. Of all conversations together."""
    sources: tuple[SourceReport, ...]
    """What each peer gave, and how fast. Of all conversations together."""


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
    signer: bytes | None = None,
    begin: Begin = nothing,
) -> FetchReport:
    """Make the conversation `root` whole in `store`, moving only what is missing, and index its blocks.

    At most `budget_bytes` of leaves are in memory before they are stored durably, but room for four of the largest.
    All peers are asked at once. A conversation of over `most_bytes` is `Refused` before it moves, and stopped where
    more comes; one whose missing leaves exceed `free_bytes` is `TierFull`. If something is missing that no peer gives,
    raises what says most: `DigestMismatch`, `PeerMisbehaved`, `TruncatedCar`,
    `PeerUnreachable` or `BlockNotFound`; what was verified is kept, and another fetch brings only the rest.
    `MalformedNode` and `LimitExceeded` refuse a conversation that is inconsistent, whoever sends it. With `expect`, a
    conversation of another model is refused by `IdentityMismatch`, which names the first axis, before any block moves.
    `signer`, by Ed25519 key, signed the root: the index notes that of every block.
    """
    return fetch_several(
        store, index, [root], peers, expect=expect, progress=progress, budget_bytes=budget_bytes,
        most_bytes=most_bytes, free_bytes=free_bytes, signers={} if signer is None else {root: signer}, begin=begin,
    )[0]  # fmt: skip


def fetch_several(
    store: Store,
    index: Index,
    roots: Sequence[Cid],
    peers: Sequence[Peer],
    *,
    expect: Model | None = None,
    progress: Progress = SILENT,
    budget_bytes: int = 64 << 20,
    most_bytes: int | None = None,
    free_bytes: int | None = None,
    signers: Mapping[Cid, bytes] = MappingProxyType({}),
    begin: Begin = nothing,
) -> list[FetchReport]:
    """Fetch several conversations in turns, those that come early in `roots` first; each report is of one.

    All roots and models are read, and refused or given to `begin`, before any block moves. What one conversation
    brought counts as had for the others. `most_bytes` is for each, `free_bytes` for all together; `signers` are who
    signed which root. Raises as `fetch`, at the first conversation that fails; those that were whole by then stay.
    """
    with ExitStack() as stack:
        writer = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="landing"))
        sources = Sources(peers, budget_bytes)
        shared = Shared(store, index, sources, Desk(store), most_bytes, free_bytes)
        heads = []
        for root in dict.fromkeys(roots):
            landing = Landing(store, progress, budget_bytes, most_bytes, writer)
            stack.callback(landing.close)
            domain = signed_domain(signers[root]) if root in signers else UNKNOWN_DOMAIN
            heads.append(Head(root, domain, shared, landing))
        stack.callback(sources.close)
        try:
            shapes = [head.open(expect, begin) for head in heads]
            progress.phase(
                "fetch", blocks_total=sum(shape.nodes_and_leaves for shape in shapes),
                bytes_total=sum(shape.leaf_bytes for shape in shapes),
            )  # fmt: skip
            _take_turns(heads)
        except (MalformedNode, MalformedCbor):
            for head in heads:
                head.landing.drop()
            raise
    return [_report(head, sources) for head in heads]


def _take_turns(heads: Sequence[Head]) -> None:
    pages = [head.bring() for head in heads]
    nearest = [(0, turn) for turn in range(len(heads))]
    while nearest:
        _, turn = heapq.heappop(nearest)
        if (tokens := next(pages[turn], None)) is not None:
            heapq.heappush(nearest, (tokens, turn))
        if len(nearest) > 1:  # the next is to find in the store what this one brought
            heads[turn].landing.close()


def _report(head: Head, sources: Sources) -> FetchReport:
    landing = head.landing
    return FetchReport(
        root=head.cid, blocks_total=landing.had + landing.fetched, blocks_had=landing.had,
        blocks_fetched=landing.fetched, bytes_fetched=landing.fetched_bytes, refused=tuple(sources.refused),
        sources=sources.reports(),
    )  # fmt: skip
