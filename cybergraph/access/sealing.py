"""Seal a conversation: its leaves and nodes become ciphertext, as blocks of their own.

    sealed root -> grant, manifest, pin set -> pin set of a page -> the page, its leaves

Leaves are read, checked, sealed and named in batches, on threads that each take a few leaves through all of it, while
the batches before are given out. What they read and what they write lies in a few buffers that take turns: fresh memory
would cost more than the cipher. Under one content key the same conversation becomes the same blocks again, and a longer
one shares all pages but the last.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final, NamedTuple

from ..chain import Step, walk
from ..cid import Buffer, Cid
from ..errors import LimitExceeded
from ..leafsize import layer_groups, leaf_bytes
from ..limits import MAX_SEALED_PAGES, MAX_SEGMENT_LINKS
from ..nodes import Conversation, Model, PinSet
from ..prefix import PrefixKey, prefix_key
from ..runs import read_runs
from ..staging import BUFFERS, Room, Staging, room_bytes
from ..store.base import Store
from .contentkey import ContentKey
from .leaf import OVERHEAD_BYTES, leaf_contexts, seal_leaf
from .padding import pad_leaf
from .page import seal_page
from .pagetable import PAGE_CONTENT_BYTES, Manifest, Page, PageEntry, SealedLeaf

BATCH_BYTES: Final = 8 << 20
CHUNK_BYTES: Final = 1 << 20
"""What a thread takes at once: little enough that the processor keeps it near from the first hash to the last."""
AHEAD: Final = 2
"""Batches that are sealed while one is given out."""
THREADS: Final = 3
"""One more than two processors need: one may wait for the disk."""
HELD_BYTES: Final = 32 << 20
"""Of what is sealed, whoever takes it may hold this much, and two runs, while the next is waited for."""

Sealed = tuple[Cid, Buffer]


class _Place(NamedTuple):
    """A leaf and the digest of its context."""

    cid: Cid
    context: bytes


class _Part(NamedTuple):
    """A block, or with `step` None the tail, and where its leaves belong."""

    step: Step | None
    before: PrefixKey | None
    """Prefix key of the block before."""
    places: list[_Place]


@dataclass
class Sealing:
    """One conversation being sealed. `blocks` does it; afterwards the two roots of the result are here."""

    store: Store
    root: Conversation
    model: Model
    key: ContentKey
    commitment: bytes
    alg: int
    manifest: Cid = field(init=False)
    pinset: Cid = field(init=False)

    def __post_init__(self) -> None:
        self._leaf_key = self.key.leaf_key()
        self._pins: list[Cid] = []
        self._pages: list[PageEntry] = []
        model = self.model
        self._leaf_bytes = leaf_bytes(
            min(model.layers_per_leaf, model.num_layers), model.block_size,
            num_kv_heads=model.num_kv_heads, head_dim=model.head_dim, dtype=model.kv_dtype,
            scheme=model.kv_quant_scheme,
        )  # fmt: skip

        block_bytes = len(layer_groups(model.num_layers, model.layers_per_leaf)) * self._room_bytes()
        under_way_bytes = (AHEAD + 1) * (BATCH_BYTES + block_bytes)
        self._read_budget_bytes = _budget_bytes(THREADS * max(CHUNK_BYTES, self._room_bytes()))
        self._sealed_budget_bytes = _budget_bytes(under_way_bytes + HELD_BYTES + 2 * block_bytes)

    def blocks(self) -> Iterator[list[Sealed]]:
        """Give everything sealed, in runs of a block; what names a block comes after it.

        Sealed leaves lie in memory that is used again once they are let go: see `HELD_BYTES`.
        Raises `BlockNotFound`, `DigestMismatch`, `MalformedNode`, `LimitExceeded`.
        """
        page: _OpenPage | None = None
        tail: list[SealedLeaf] = []
        tail_prefix: PrefixKey | None = None
        for part, leaves, sealed in self._sealed_parts():
            yield sealed
            if part.step is None:
                tail, tail_prefix = leaves, part.before
                continue
            segment = part.step.index // MAX_SEGMENT_LINKS
            data = part.step.block.encode()
            if page is not None and (page.segment != segment or page.size_bytes + len(data) > PAGE_CONTENT_BYTES):
                yield self._close(page)
                page = None
            if page is None:
                page = _OpenPage(segment, part.step.index, part.before)
            page.add(data, leaves)
        if page is not None:
            yield self._close(page)
        yield self._finish(tail, tail_prefix)

    def _sealed_parts(self) -> Iterator[tuple[_Part, list[SealedLeaf], list[Sealed]]]:
        """Seal batch after batch, some ahead of what is given out: whoever takes it may be waiting for a disk."""
        room, sealed = Staging(self._read_budget_bytes), Staging(self._sealed_budget_bytes)
        ahead = _batches(self._parts(), max(1, BATCH_BYTES // self._room_bytes()))
        step = max(1, CHUNK_BYTES // self._room_bytes())
        coming: deque[_Batch] = deque()
        with ThreadPoolExecutor(THREADS, thread_name_prefix="seal") as threads:
            try:
                for parts in ahead:
                    places = [place for part in parts for place in part.places]
                    chunks = (places[start : start + step] for start in range(0, len(places), step))
                    tasks = [threads.submit(self._seal, chunk, room.room, sealed.room) for chunk in chunks]
                    coming.append(_Batch(parts, tasks))
                    if len(coming) > AHEAD:
                        yield from coming.popleft().collect()
                while coming:
                    yield from coming.popleft().collect()
            finally:  # nobody takes any more: a thread that waits for room would wait forever
                threads.shutdown(wait=False, cancel_futures=True)
                room.close()
                sealed.close()

    def _seal(self, places: Sequence[_Place], room: Room, sealed_room: Room) -> list[tuple[SealedLeaf, Sealed]]:
        """Read, check, seal and name a few leaves."""
        done: list[tuple[SealedLeaf, Sealed]] = []
        for run in read_runs(self.store, ((place.cid, None) for place in places), 2 * CHUNK_BYTES, room):
            for place, (cid, data) in zip(places[len(done) :], run, strict=False):
                known = cid.hash_name == "sha2-256" and len(data) == self._leaf_bytes  # it was checked on its way
                sealed, digest = seal_leaf(
                    self._leaf_key, place.context, pad_leaf(data, self._leaf_bytes), self.alg,
                    cid.digest if known else None, sealed_room,
                )  # fmt: skip
                name = Cid.of(sealed, "raw", "sha2-256")
                done.append((SealedLeaf(name, digest), (name, sealed)))
                del data
            del run
        return done

    def _parts(self) -> Iterator[_Part]:
        root = self.root
        before: PrefixKey | None = None
        for step in walk(self.store, root):
            block = step.block
            contexts = leaf_contexts(self.model, root.model, step.position_start, block.tokens, before)
            yield _Part(step, before, list(map(_Place, block.kv, contexts)))
            before = prefix_key(root.model, before, block.tokens)
        if root.tail.kv:
            position = root.length - len(root.tail.tokens)
            contexts = leaf_contexts(self.model, root.model, position, root.tail.tokens, before)
            yield _Part(None, before, list(map(_Place, root.tail.kv, contexts)))

    def _room_bytes(self) -> int:
        """Give what a sealed leaf takes of the budget."""
        return room_bytes(self._leaf_bytes + OVERHEAD_BYTES)

    def _close(self, page: "_OpenPage") -> list[Sealed]:
        """Seal a page, and list it with its leaves for pinning."""
        if len(self._pages) == MAX_SEALED_PAGES:
            raise LimitExceeded(
                f"the page table of a sealed conversation has at most {MAX_SEALED_PAGES} pages",
                hint="publish it in two parts", pages=len(self._pages),
            )  # fmt: skip
        first = not self._pages or self._pages[-1].segment != page.segment
        segment = self.store.get(self.root.segments[page.segment]) if first else None
        content = Page(segment, page.start, page.prefix, tuple(page.blocks), tuple(page.leaves)).encode()
        sealed = self._page(content)
        self._pages.append(PageEntry(sealed[0], page.segment))
        pins = pin_page(sealed[0], page.leaves)
        self._pins.append(pins.cid())
        return [sealed, (pins.cid(), pins.encode())]

    def _finish(self, tail: Sequence[SealedLeaf], prefix: PrefixKey | None) -> list[Sealed]:
        manifest = Manifest(
            self.root.encode(), self.model.encode(), self._leaf_bytes, tuple(tail), prefix, tuple(self._pages)
        ).encode()
        sealed = self._page(manifest)
        pins = PinSet(tuple(sorted({*self._pins, sealed[0], *(leaf.cid for leaf in tail)})))
        self.manifest, self.pinset = sealed[0], pins.cid()
        return [sealed, (self.pinset, pins.encode())]

    def _page(self, content: bytes) -> Sealed:
        data = seal_page(self.key, self.commitment, content, self.alg)
        return Cid.of(data, "raw", "sha2-256"), data


def _budget_bytes(used_bytes: int) -> int:
    """Give a budget for a staging of which the newest this many bytes never fill more than all buffers but one."""
    return used_bytes * BUFFERS // (BUFFERS - 1)


def pin_page(page: Cid, leaves: Sequence[SealedLeaf]) -> PinSet:
    """Give what is to be pinned and moved together with a page: who has opened the page can ask for this by its CID."""
    return PinSet(tuple(sorted({page, *(leaf.cid for leaf in leaves)})))


@dataclass
class _OpenPage:
    segment: int
    start: int
    prefix: PrefixKey | None
    blocks: list[bytes] = field(default_factory=list)
    leaves: list[SealedLeaf] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, block: bytes, leaves: Sequence[SealedLeaf]) -> None:
        self.blocks.append(block)
        self.leaves += leaves
        self.size_bytes += len(block) + len(leaves) * SealedLeaf.SIZE_BYTES


class _Batch(NamedTuple):
    parts: list[_Part]
    tasks: list[Future[list[tuple[SealedLeaf, Sealed]]]]

    def collect(self) -> Iterator[tuple[_Part, list[SealedLeaf], list[Sealed]]]:
        """Give each part with what it was sealed to, which is not kept here."""
        done = chain.from_iterable(self._results())
        for part in self.parts:
            leaves = list(islice(done, len(part.places)))
            names, sealed = [leaf for leaf, _ in leaves], [block for _, block in leaves]
            del leaves
            yield part, names, sealed
            del sealed

    def _results(self) -> Iterator[list[tuple[SealedLeaf, Sealed]]]:
        self.tasks.reverse()
        while self.tasks:
            yield self.tasks.pop().result()


def _batches(parts: Iterator[_Part], most_leaves: int) -> Iterator[list[_Part]]:
    batch: list[_Part] = []
    leaves = 0
    for part in parts:
        batch.append(part)
        leaves += len(part.places)
        if leaves >= most_leaves:
            yield batch
            batch, leaves = [], 0
    if batch:
        yield batch
