"""Publish to a Kubo node: the model, one part per segment, then the root with the tail."""

from collections.abc import Iterable, Iterator
from itertools import takewhile

from ..chain import load_root
from ..cid import Buffer, Cid
from ..nodes import Block, Conversation, Segment
from ..peers.kubo import KuboReport, KuboRpc, KuboUpload, Part
from ..store.base import Store
from .plan import PublishPlan
from .progress import SILENT, Progress


def publish_kubo(
    store: Store, plan: PublishPlan, rpc: KuboRpc, name: str, earlier: Iterable[Cid] = (), progress: Progress = SILENT
) -> KuboReport:
    """Send everything in the plan that the node lacks, and pin the root there as `name`.

    `earlier` are roots that may be pinned there already; from the one that shares most, the node grows the new pin.
    May be stopped and repeated: it goes on at the segment where it stopped. Every block is verified on its way.
    Raises `PeerError`, `AccessDenied`, `BlockNotFound`, `DigestMismatch`.
    """
    progress.phase("write", blocks_total=plan.blocks, bytes_total=plan.leaf_bytes)
    store.put_node(plan.conversation)  # its public form may be new; the same bytes are skipped
    sizes = {item.cid: item.size_bytes for item in plan.items}
    upload = KuboUpload(rpc)
    below: set[Cid] = set()
    for root, cids in _parts(store, plan.conversation):
        if not upload.add(Part(root, _blocks(store, cids, progress))):
            progress.advance(len(cids), sum(sizes[cid] for cid in cids if cid.codec == "raw"))
        below.update(cids)
    rest = [item.cid for item in plan.items if item.cid not in below]
    return upload.finish(Part(plan.root, _blocks(store, rest, progress)), name, _grown_from(store, plan, earlier))


def _parts(store: Store, conversation: Conversation) -> Iterator[tuple[Cid, list[Cid]]]:
    """Give the root of each part with all that lies below it: the model first, for every segment links to it."""
    yield conversation.model, [conversation.model]
    for cid in conversation.segments:
        below = [cid]
        for link in Segment.decode(store.get(cid), verify=cid).links:
            below += [link.to, *Block.decode(store.get(link.to), verify=link.to).kv]
        yield cid, below


def _blocks(store: Store, cids: list[Cid], progress: Progress) -> Iterator[tuple[Cid, Buffer]]:
    for cid in cids:
        data = store.get(cid)
        yield cid, data
        progress.advance(1, len(data) if cid.codec == "raw" else 0)


def _grown_from(store: Store, plan: PublishPlan, earlier: Iterable[Cid]) -> Cid | None:
    """Find the earlier root that shares the longest run of segments with this one, if any shares one."""
    ours = plan.conversation.segments
    best, most = None, 0
    for root in earlier:
        if root == plan.root or not store.has(root):
            continue
        theirs = load_root(store, root).segments
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))
        if shared > most:
            best, most = root, shared
    return best
