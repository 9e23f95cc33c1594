"""Publish to a Kubo node: the model, one part per segment, then the root with the tail."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, takewhile
from threading import Lock
from typing import NamedTuple

from ..chain import closure, load_root
from ..cid import Buffer, Cid
from ..errors import RpcFailed
from ..index import Index
from ..limits import MAX_SEGMENT_LINKS
from ..nodes import PinSet, Sealed
from ..peers.kubo import KuboReport, KuboRpc, KuboUpload, Part
from ..runs import read_runs
from ..staging import Staging
from ..store.base import Store
from .plan import Item, PublishPlan, plan_publish
from .progress import SILENT, Progress
from .publish import BUDGET_BYTES, RUN_BYTES

_Run = list[tuple[Cid, Buffer]]


def publish_kubo(
    store: Store,
    index: Index,
    plan: PublishPlan,
    rpc: KuboRpc,
    name: str,
    earlier: Iterable[Cid] = (),
    progress: Progress = SILENT,
) -> KuboReport:
    """Send everything in the plan that the node lacks, and pin the root there as `name`.

    `earlier` are roots that may be pinned there already; from the one that shares most, the node grows the new pin.
    A root links to its parent, which is public, so the node gets that too. May be stopped and repeated: it goes on at
    the segment where it stopped. Every block is verified on its way. Raises `PeerError`, `AccessDenied`, `TierFull` for
    the node's disk, `BlockNotFound`, `DigestMismatch`.
    """
    store.put_many(plan.made)
    upload = KuboUpload(rpc)
    pinning = _Pinning(_Totals(plan.blocks, plan.bytes), progress)
    blocks = plan.blocks if plan.conversation.parent is None else None  # else the node walks the parent as well
    if upload.pin_name(plan.root) is not None and upload.pin(Part(plan.root, blocks, (), lambda *_: ()), name, pinning):
        upload.all_held(root for root, _ in _parts(plan)[:-1])
        return upload.close(plan.root)
    base = next((root for root in _earlier(store, plan, earlier) if upload.pin_name(root) is not None), None)
    known = set[Cid]() if base is None else set(load_root(store, base).segments)
    # A node may have lost what it says it pins. That comes out when it walks the root; then each part is walked.
    for believe in (True, False):
        *parts, (_, rest) = [*_lineage(store, index, plan, upload, believe=believe), *_parts(plan)]
        items = list(chain.from_iterable(items for _, items in parts)) + rest
        progress.phase("write", blocks_total=len(items), bytes_total=_leaf_bytes(items))
        for root, items in parts:
            part = _part(store, root, blocks, items, progress)
            is_last = root == parts[-1][0]
            if believe and root in known:
                upload.held(root)
            elif upload.add(part, believe=believe, send=not is_last):
                # The last part needs no pin of its own: the root, which has one, comes in the same stream.
                rest = [*items, *rest] if is_last else rest
                continue
            progress.advance(len(items), _leaf_bytes(items))
        whole = _part(store, plan.root, blocks, rest, progress)
        if upload.finish(whole, name, base if believe else None, pinning):
            return upload.close(plan.root)
    raise _unsteady(rpc)


def publish_kubo_sealed(store: Store, root: Cid, rpc: KuboRpc, name: str, progress: Progress = SILENT) -> KuboReport:
    """Send a sealed conversation that is in the store, pin set by pin set, and pin its root as `name`.

    May be stopped and repeated. Raises as `publish_kubo`.
    """
    sizes = {cid: store.size_bytes(cid) or 0 for cid in closure(store, root)}
    pinset = Sealed.decode(store.get(root)).pinset
    parts = [cid for cid in PinSet.decode(store.get(pinset)).links if cid.codec == "dag-cbor"]
    upload = KuboUpload(rpc)
    totals = _Totals(len(sizes), sum(sizes.values()))
    pinning = _Pinning(totals, progress)
    raw_bytes = sum(size_bytes for cid, size_bytes in sizes.items() if cid.codec == "raw")
    for believe in (True, False):
        progress.phase("write", blocks_total=len(sizes), bytes_total=raw_bytes)
        rest = dict(sizes)
        for part in parts:
            items = [Item(cid, "sealed", rest.pop(cid)) for cid in (part, *PinSet.decode(store.get(part)).links)]
            if not upload.add(_part(store, part, None, items, progress), believe=believe):
                progress.advance(len(items), _leaf_bytes(items))
        items = [Item(cid, "sealed", size_bytes) for cid, size_bytes in rest.items()]
        if upload.finish(_part(store, root, totals.blocks, items, progress), name, None, pinning):
            return upload.close(root)
    raise _unsteady(rpc)


def _unsteady(rpc: KuboRpc) -> RpcFailed:
    return RpcFailed(
        f"{rpc.name} loses blocks before they are pinned",
        hint="does somebody unpin there, or delete? repeat when it is quiet",
        peer=rpc.name, command="pin/add", status=200, reason="blocks are gone again",
    )  # fmt: skip


def _part(store: Store, root: Cid, blocks: int | None, items: Sequence[Item], progress: Progress) -> Part:
    counting = Lock()

    def read(start: int, stop: int) -> Iterator[tuple[Cid, Buffer]]:
        room = Staging(BUDGET_BYTES).room
        for run in _ahead(read_runs(store, ((item.cid, None) for item in items[start:stop]), RUN_BYTES, room)):
            yield from run
            with counting:
                progress.advance(len(run), sum(len(data) for cid, data in run if cid.codec == "raw"))
            del run  # or its memory would stay in use while the next is waited for

    return Part(root, blocks, [(item.cid, item.size_bytes) for item in items], read)


def _ahead(runs: Iterator[_Run]) -> Iterator[_Run]:
    """Read and check the next run while this one is on its way."""
    with ThreadPoolExecutor(1, thread_name_prefix="read ahead") as reader:
        coming: Future[_Run | None] = reader.submit(next, runs, None)
        while (run := coming.result()) is not None:
            coming = reader.submit(next, runs, None)
            yield run
            del run


class _Totals(NamedTuple):
    """How much a root pins."""

    blocks: int
    bytes: int


class _Pinning:
    """Turns the node's running totals into steps of a phase, which begins with the first."""

    def __init__(self, totals: _Totals, progress: Progress) -> None:
        self._totals = totals
        self._progress = progress
        self._blocks = self._bytes = 0

    def __call__(self, blocks: int, size_bytes: int) -> None:
        if not self._blocks:
            self._progress.phase("pin", blocks_total=self._totals.blocks, bytes_total=self._totals.bytes)
        self._progress.advance(blocks - self._blocks, max(0, size_bytes - self._bytes))
        self._blocks, self._bytes = blocks, size_bytes


def _leaf_bytes(items: Iterable[Item]) -> int:
    return sum(item.size_bytes for item in items if item.cid.codec == "raw")


def _parts(plan: PublishPlan) -> list[tuple[Cid, list[Item]]]:
    """List the segments with all that lies below each, then the root with what belongs to none.

    A node that several link to stands in the first: the model, which all do, and leaves that are alike.
    """
    below = deque(item for item in plan.items if item.kind in ("block", "leaf"))
    by_cid = {item.cid: item for item in plan.items if item.kind in ("model", "segment")}
    parts: list[tuple[Cid, list[Item]]] = []
    above = [by_cid[plan.conversation.model]]
    for cid in plan.conversation.segments:
        items, blocks = [*above, by_cid[cid]], 0
        while below and (below[0].kind == "leaf" or blocks < MAX_SEGMENT_LINKS):
            items.append(below.popleft())
            blocks += items[-1].kind == "block"
        parts.append((cid, items))
        above = []
    rest = [item for item in plan.items if item.kind in ("root", "tail-leaf")]
    return [*parts, (plan.root, [*above, *rest])]


def _lineage(
    store: Store, index: Index, plan: PublishPlan, upload: KuboUpload, *, believe: bool
) -> Iterator[tuple[Cid, list[Item]]]:
    """Give the parts of the public conversations that this one continues, the first of them first.

    A pin follows every link, also that to the parent. One that the node has pinned ends the row: its own are there.
    """
    plans: list[PublishPlan] = []
    parent = plan.conversation.parent
    while parent is not None and not (believe and upload.pin_name(parent) is not None):
        plans.append(plan_publish(store, index, parent, "public"))
        parent = plans[-1].conversation.parent
    for each in reversed(plans):
        yield from _parts(each)


def _earlier(store: Store, plan: PublishPlan, roots: Iterable[Cid]) -> list[Cid]:
    """List the earlier roots that begin with segments of this one, the longest such beginning first."""
    ours = plan.conversation.segments
    shared: dict[Cid, int] = {}
    for root in roots:
        if root != plan.root and store.has(root):
            theirs = load_root(store, root).segments
            shared[root] = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))
    return sorted((root for root, count in shared.items() if count), key=lambda root: -shared[root])
