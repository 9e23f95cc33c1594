"""Seal a conversation: its leaves and nodes become ciphertext, as blocks of their own.

    sealed root -> grant, manifest, pin set -> pin set of a page -> the page, its leaves

Leaves are read, checked, sealed and named in large batches: while two threads seal one, the next is read. Under one
content key the same conversation becomes the same blocks again, and a longer one shares all pages but the last.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final, NamedTuple

from ..chain import Step, walk
from ..cid import Buffer, Cid
from ..errors import LimitExceeded
from ..leafsize import leaf_bytes
from ..limits import MAX_SEALED_PAGES, MAX_SEGMENT_LINKS
from ..nodes import Conversation, Model, PinSet
from ..prefix import PrefixKey, prefix_key
from ..runs import read_runs
from ..staging import Staging
from ..store.base import Store
from .contentkey import ContentKey
from .leaf import leaf_contexts, seal_leaf
from .padding import pad_leaf
from .page import seal_page
from .pagetable import PAGE_CONTENT_BYTES, Manifest, Page, PageEntry, SealedLeaf

BATCH_BYTES: Final = 8 << 20
CHUNK_BYTES: Final = 1 << 20
BUDGET_BYTES: Final = 32 << 20
THREADS: Final = 2

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
        )  # fmt: skip

    def blocks(self) -> Iterator[list[Sealed]]:
        """Give everything sealed, in batches; what names a block comes after it.

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
        """Seal batch after batch, one ahead of what is given out."""
        room = Staging(BUDGET_BYTES).room
        before: _Batch | None = None
        with ThreadPoolExecutor(THREADS, thread_name_prefix="seal") as threads:
            for parts in _batches(self._parts(), max(1, BATCH_BYTES // self._leaf_bytes)):
                places = [place for part in parts for place in part.places]
                runs = read_runs(self.store, ((place.cid, None) for place in places), 2 * BATCH_BYTES, room)
                pairs = list(zip(places, (data for run in runs for _, data in run), strict=True))
                step = max(1, CHUNK_BYTES // self._leaf_bytes)
                chunks = [pairs[start : start + step] for start in range(0, len(pairs), step)]
                del pairs
                tasks = [threads.submit(self._seal, chunk) for chunk in chunks]
                del chunks
                if before is not None:
                    yield from before.collect()
                before = _Batch(parts, tasks)
            if before is not None:
                yield from before.collect()

    def _seal(self, chunk: list[tuple[_Place, Buffer]]) -> list[tuple[SealedLeaf, Sealed]]:
        done: list[tuple[SealedLeaf, Sealed]] = []
        for place, data in chunk:
            known = place.cid.hash_name == "sha2-256" and len(data) == self._leaf_bytes  # it was checked on its way
            sealed, digest = seal_leaf(
                self._leaf_key, place.context, pad_leaf(data, self._leaf_bytes), self.alg,
                place.cid.digest if known else None,
            )  # fmt: skip
            cid = Cid.of(sealed, "raw", "sha2-256")
            done.append((SealedLeaf(cid, digest), (cid, sealed)))
        chunk.clear()  # its memory is to be free for the next batch
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
        done = chain.from_iterable(task.result() for task in self.tasks)
        for part in self.parts:
            leaves = list(islice(done, len(part.places)))
            yield part, [leaf for leaf, _ in leaves], [sealed for _, sealed in leaves]


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
