"""Publish a conversation for some, and fetch one that was published so.

Sealing makes blocks of its own: they stand in the store beside the plaintext, are marked public like others, and leave
by the same ways. Fetching opens them on their way, so that what arrives is the conversation by the names it has at
home.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from ..access import ContentKey, Identity, OpenedTable, SealedPeer, Sealing, check_grant_of, commits, make_grant
from ..access.lineage import Lineage
from ..access.proof import MIN_RING_KEYS, make_ring
from ..chain import closure, load_root, missing
from ..cid import Buffer, Cid
from ..errors import AuthFailed, BlockNotFound, ProofRejected
from ..index import Index
from ..nodes import Grant, Model, Ring, Sealed, decode_node
from ..peers.base import Peer, Prover
from ..store.base import Store
from .fetch import FetchReport, fetch, nothing
from .head import Begin
from .progress import SILENT, Progress
from .publish import write_car_file
from .shape import Shape
from .single import bring, bring_node

BATCH_BYTES: Final = 32 << 20


class _Signed(NamedTuple):
    """What a grant adds to what is sealed."""

    root: Cid
    grant: Cid
    ring: Cid | None


@dataclass(frozen=True)
class SealedReport:
    """What was published for some."""

    root: Cid
    """The sealed root: what to send to readers."""
    grant: Cid
    ring: Cid | None
    epoch: int
    readers: int
    cids: tuple[Cid, ...]
    """Everything that was published: root, grant, manifest, pin sets, pages and leaves."""
    bytes: int
    """Of all of it, padding and all."""
    leaf_bytes: int
    """Of leaves and pages alone."""


def publish_sealed(
    store: Store,
    index: Index,
    root_cid: Cid,
    lineage: Lineage,
    issuer: Identity,
    progress: Progress = SILENT,
    car: Path | None = None,
    *,
    ring: bool = False,
    public: bool = True,
) -> tuple[Lineage, SealedReport]:
    """Seal a conversation under the lineage's key, grant access to its readers, and mark the result `public`.

    With `car`, it is written to that file as well, while it is sealed. Returns the lineage with what was published
    last; the caller keeps it. Of what becomes public, the CID of a parent is left out: it is a hash of other text.
    `ring` as for `grant_access`. Raises as `Sealing.blocks`, `make_grant`, `write_car_file`, and `BlockNotFound` for a
    conversation that is not whole.
    """
    lineage.check_issuer(issuer.public())
    root = load_root(store, root_cid)
    if public:
        root = replace(root, parent=None, fork_at=None)
    if absent := missing(store, root_cid):
        raise BlockNotFound(f"{root_cid} is not whole here: {absent[0]} is missing", cid=str(absent[0]))
    model = Model.decode(store.get(root.model))
    sealing = Sealing(store, root, model, lineage.content_key, lineage.commitment, lineage.alg)
    shape = Shape(root_cid, root, model)
    progress.phase("seal", blocks_total=shape.nodes_and_leaves, bytes_total=shape.leaf_bytes)
    results: list[tuple[Lineage, SealedReport]] = []

    def blocks() -> Iterator[tuple[Cid, Buffer]]:
        with ThreadPoolExecutor(1, thread_name_prefix="store sealed") as writer:  # the disk works while we seal
            under_way: Future[int] | None = None
            for batch in _batches(sealing.blocks()):
                if under_way is not None:
                    under_way.result()
                under_way = writer.submit(store.put_many, batch, hashed=True)
                yield from batch
                progress.advance(len(batch), sum(len(data) for _, data in batch))
            if under_way is not None:
                under_way.result()
        signed = _sign(store, lineage, issuer, sealing.manifest, sealing.pinset, ring=ring)
        sizes = {cid: store.size_bytes(cid) or 0 for cid in closure(store, signed.root)}
        if public:
            index.publish(signed.root, sizes)
        report = SealedReport(
            *signed, lineage.epoch, len(lineage.readers), tuple(sizes), sum(sizes.values()),
            sum(size_bytes for cid, size_bytes in sizes.items() if cid.codec == "raw"),
        )  # fmt: skip
        results.append((replace(lineage, sealed=report.root, grant=report.grant), report))
        if report.ring is not None:
            yield report.ring, store.get(report.ring)
        yield report.grant, store.get(report.grant)
        yield report.root, store.get(report.root)

    if car is None:
        deque(blocks(), maxlen=0)
    else:
        write_car_file(car, blocks(), lambda: results[0][1].root)
    return results[0]


def _batches(runs: Iterator[list[tuple[Cid, Buffer]]]) -> Iterator[list[tuple[Cid, Buffer]]]:
    """Put runs together: what is stored at once is durable at once, and each time costs a sync of the disk."""
    batch: list[tuple[Cid, Buffer]] = []
    size_bytes = 0
    for run in runs:
        batch += run
        size_bytes += sum(len(data) for _, data in run)
        if size_bytes >= BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


def grant_access(
    store: Store,
    index: Index,
    lineage: Lineage,
    issuer: Identity,
    manifest: Cid,
    pinset: Cid,
    *,
    ring: bool = False,
) -> Lineage:
    """Sign a grant for the lineage's readers over what is published sealed, and publish both under a new root.

    With `ring`, the issuer and the readers are published as a ring, by keys for that purpose only: one of them can then
    show that it is among them and hide which. Costs the same for any size of the conversation. Returns the lineage with
    what was published last; the caller keeps it. Raises as `make_grant`, `BadReference` for another issuer than the
    lineage's, and `MalformedNode` for a ring of too few.
    """
    lineage.check_issuer(issuer.public())
    signed = _sign(store, lineage, issuer, manifest, pinset, ring=ring)
    known = index.is_public(manifest) and index.is_public(pinset)  # all that is below them then is, too
    index.publish(signed.root, filter(None, signed) if known else closure(store, signed.root))
    return replace(lineage, sealed=signed.root, grant=signed.grant)


def _sign(store: Store, lineage: Lineage, issuer: Identity, manifest: Cid, pinset: Cid, *, ring: bool) -> _Signed:
    """Store a grant for the lineage's readers and a sealed root that names it. Raises as `grant_access`."""
    readers = [reader.identity() for reader in lineage.readers]
    ring_cid = store.put_node(make_ring({each.ring for each in (issuer.public(), *readers)})) if ring else None
    grant = make_grant(
        issuer, lineage.content_key, readers, lineage=lineage.lineage, epoch=lineage.epoch, root=manifest,
        alg=lineage.alg, prev=lineage.grant, ring=ring_cid, kem=lineage.kem,
    )  # fmt: skip
    sealed = Sealed(lineage.alg, lineage.lineage, lineage.epoch, grant.commitment, grant.cid(), manifest, pinset)
    return _Signed(store.put_node(sealed), store.put_node(grant), ring_cid)


def withdraw_earlier(store: Store, index: Index, lineage: Lineage) -> None:
    """Serve no longer every root of a lineage that was published in the epochs before, and what only they need.

    Copies that have left stay where they are. Raises as `closure`.
    """
    published = index.published()
    nodes = {root: decode_node(store.get(root)) for root in published}
    old = [
        root for root, node in nodes.items()
        if isinstance(node, Sealed) and node.lineage == lineage.lineage and node.epoch < lineage.epoch
    ]  # fmt: skip
    needed = set(closure(store, *(root for root in published if root not in old)))
    for root in old:
        index.withdraw(root, set(closure(store, root)) - needed)


def keeps_ring(store: Store, lineage: Lineage) -> bool:
    """Say whether readers were published as a ring before, and are enough for one still."""
    if lineage.grant is None or not store.has(lineage.grant):
        return False
    keys = {reader.identity().ring for reader in lineage.readers}  # and the issuer's makes one more
    return Grant.decode(store.get(lineage.grant)).ring is not None and len(keys) + 1 >= MIN_RING_KEYS


def fetch_sealed(
    store: Store,
    index: Index,
    root: Cid,
    peers: Sequence[Peer],
    unlock: Callable[[Sealed, Grant], ContentKey],
    *,
    prove: Callable[[Grant, ContentKey], Prover] | None = None,
    progress: Progress = SILENT,
    most_bytes: int | None = None,
    free_bytes: int | None = None,
    begin: Begin = nothing,
    attribute: bool = True,
) -> FetchReport:
    """Fetch a sealed conversation and store it open. Who signed its grant counts as its signer if they `attribute`.

    `unlock` gives the content key, or raises; `prove` says who answers peers that ask for a proof of access; `begin` as
    in `fetch`. The report's root is the conversation's own. Raises as `fetch`, and `AuthFailed` where grant, root and
    key do not belong together.
    """
    sealed, grant = find_grant(root, peers)
    key = unlock(sealed, grant)
    if not commits(grant, key):
        raise AuthFailed("this key is not that of the conversation", cid=str(root))
    if prove is not None:
        prover = prove(grant, key)
        for peer in peers:
            peer.prove_with(prover)
    table = OpenedTable(sealed, key, bring(sealed.manifest, peers))
    through = [SealedPeer(peer, table) for peer in peers]
    return fetch(
        store, index, table.root, through, progress=progress, most_bytes=most_bytes, free_bytes=free_bytes,
        signer=grant.issuer if attribute else None, begin=begin,
    )  # fmt: skip


def find_grant(root: Cid, peers: Sequence[Peer]) -> tuple[Sealed, Grant]:
    """Bring a sealed root and its grant, and check that they belong together. Raises as `check_grant_of`."""
    sealed = bring_node(root, peers, Sealed)
    grant = bring_node(sealed.grant, peers, Grant)
    check_grant_of(sealed, grant)
    return sealed, grant


def find_ring(grant: Grant, peers: Sequence[Peer]) -> Ring:
    """Bring the ring of a grant. Raises `ProofRejected` for a grant without one."""
    if grant.ring is None:
        raise ProofRejected(
            "this grant names no ring to hide in",
            hint="without --proof ring, a proof does not tell readers apart either", reason="no-ring",
        )  # fmt: skip
    return bring_node(grant.ring, peers, Ring)
