"""Publish a conversation for some.

Sealing makes blocks of its own. They stand in the store beside the plaintext, are marked public like others, and leave
by the same ways; or they go to a CAR file alone.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ..access import Identity, Sealing
from ..access.lineage import Lineage, Publication
from ..car import car_head, car_header, read_car
from ..chain import load_root, missing
from ..cid import Buffer, Cid
from ..errors import BlockNotFound, CyberKVError
from ..index import Index
from ..nodes import Grant, Model
from ..private import open_regular
from ..store.base import Store
from .granting import Keep, Signed, not_kept, says_the_same, sign_access
from .progress import SILENT, Progress
from .publish import write_car_file
from .shape import Shape

BATCH_BYTES: Final = 16 << 20
"""What is stored at once. While one batch is written, the next is sealed: both fit into `sealing.HELD_BYTES`."""

_Run = list[tuple[Cid, Buffer]]


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
    """Root, grant, ring and everything that was sealed now, which is nothing where all of it was published already."""
    blocks: int
    """How many belong to the root: these, manifest, pin sets, pages and leaves."""
    bytes: int
    """Of all of them, padding and all."""
    leaf_bytes: int
    """Of the leaves and pages that were sealed now."""

    @property
    def unchanged(self) -> bool:
        """Whether all of it was published already."""
        return not self.leaf_bytes


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
    known: Grant | None = None,
    keep: Keep = not_kept,
) -> tuple[Lineage, SealedReport]:
    """Seal a conversation under the lineage's key, grant access to its readers, and mark the result `public`.

    With `car`, it is written to that file instead: nothing of it is stored or marked. What stands there already under
    the same key for the same readers stays as it is. Returns the lineage with what was published last, which is given
    to `keep` before anybody can get it. Of what leaves, the CID of a parent is left out: it is a hash of other text.
    `ring` and `known` as for `sign_access`. Raises as `Sealing.blocks`, `sign_access`, `write_car_file`, and
    `BlockNotFound` for a conversation that is not whole.
    """
    lineage.check_issuer(issuer.public())
    if (last := _same(lineage, root_cid, known, ring=ring)) is not None:
        signed = sign_access(lineage, issuer, last.manifest, last.pinset, ring=ring, known=known)
        if _stands_in(car, last, signed) if car else public and _stands_here(store, index, signed.root):
            return lineage, _report(lineage, last, signed, {})
    root = load_root(store, root_cid)
    if public:
        root = replace(root, parent=None, fork_at=None)
    if absent := missing(store, root_cid):
        raise BlockNotFound(f"{root_cid} is not whole here: {absent[0]} is missing", cid=str(absent[0]))
    model = Model.decode(store.get(root.model))
    sealing = Sealing(store, root, model, lineage.content_key, lineage.commitment, lineage.alg)
    shape = Shape(root_cid, root, model)
    progress.phase("seal", blocks_total=shape.nodes_and_leaves, bytes_total=shape.leaf_bytes)
    sizes: dict[Cid, int] = {}

    def runs() -> Iterator[_Run]:
        for run in sealing.blocks():
            size_bytes = sum(len(data) for _, data in run)
            sizes.update((cid, len(data)) for cid, data in run)
            yield run
            progress.advance(len(run), size_bytes)

    def sign() -> tuple[Lineage, Publication, Signed]:
        signed = sign_access(lineage, issuer, sealing.manifest, sealing.pinset, ring=ring, known=known)
        last = Publication(
            source=root_cid, epoch=lineage.epoch, root=signed.root, grant=signed.grant.cid(), ring=signed.ring,
            manifest=sealing.manifest, pinset=sealing.pinset, audience=lineage.audience(ring=ring), blocks=len(sizes),
            size_bytes=sum(sizes.values()), car_bytes=sum(len(car_head(*each)) + each[1] for each in sizes.items()),
        )  # fmt: skip
        return lineage.published(last), last, signed

    if car is None:
        _store(store, runs())
        renewed, last, signed = sign()
        store.put_many(signed.nodes.items(), hashed=True)
        keep(renewed, signed.grant)
        if public:
            index.publish(signed.root, (*signed.nodes, *sizes))
    else:
        renewed, last, signed = _write(car, runs(), sign, keep)
    return renewed, _report(renewed, last, signed, sizes)


def _store(store: Store, runs: Iterator[_Run]) -> None:
    """Store runs in batches: what is stored at once is durable at once, and each time costs a sync of the disk."""
    batch: _Run = []
    size_bytes = 0
    with ThreadPoolExecutor(1, thread_name_prefix="store sealed") as writer:  # the disk works while we seal
        under_way: Future[int] | None = None
        for run in runs:
            batch += run
            size_bytes += sum(len(data) for _, data in run)
            if size_bytes >= BATCH_BYTES:
                if under_way is not None:
                    under_way.result()
                under_way = writer.submit(store.put_many, batch, hashed=True)
                batch, size_bytes = [], 0
        if under_way is not None:
            under_way.result()
    store.put_many(batch, hashed=True)


def _write(
    car: Path, runs: Iterator[_Run], sign: Callable[[], tuple[Lineage, Publication, Signed]], keep: Keep
) -> tuple[Lineage, Publication, Signed]:
    """Write runs and what is signed over them as one file."""
    result: list[tuple[Lineage, Publication, Signed]] = []

    def blocks() -> Iterator[tuple[Cid, Buffer]]:
        for run in runs:
            yield from run
            del run  # its memory is to be free for the next
        result.append(sign())
        yield from result[0][2].nodes.items()

    def root() -> Cid:
        renewed, _, signed = result[0]
        keep(renewed, signed.grant)
        return signed.root

    write_car_file(car, blocks(), root)
    return result[0]


def _same(lineage: Lineage, source: Cid, known: Grant | None, *, ring: bool) -> Publication | None:
    """Give what was published last if that is the same conversation, for the same readers, under the same key."""
    last = lineage.last
    if last is None or last.source != source or known is None:
        return None
    return last if says_the_same(known, lineage, last.manifest, ring=ring) else None


def _stands_here(store: Store, index: Index, root: Cid) -> bool:
    return root in index.published() and not missing(store, root)


def _stands_in(car: Path, last: Publication, signed: Signed) -> bool:
    """Say whether a file is, by its root and its size, what would be written to it."""
    signed_bytes = sum(len(car_head(cid, len(data))) + len(data) for cid, data in signed.nodes.items())
    try:
        with open_regular(car) as file:
            roots, size_bytes = read_car(file).roots, car.stat().st_size
    except (CyberKVError, OSError):
        return False
    return (roots, size_bytes) == ((signed.root,), len(car_header(roots)) + last.car_bytes + signed_bytes)


def _report(lineage: Lineage, last: Publication, signed: Signed, sizes: dict[Cid, int]) -> SealedReport:
    return SealedReport(
        signed.root, signed.grant.cid(), signed.ring, lineage.epoch, len(lineage.readers),
        (*reversed(signed.nodes), *sizes), last.blocks + len(signed.nodes),
        last.size_bytes + sum(map(len, signed.nodes.values())),
        sum(size_bytes for cid, size_bytes in sizes.items() if cid.codec == "raw"),
    )  # fmt: skip
