"""The page table of a sealed conversation, as far as its pages were read."""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

from ..cid import Buffer, Cid
from ..errors import AuthFailed, MalformedNode
from ..leafsize import layer_groups, leaf_bytes
from ..limits import MAX_SEGMENT_LINKS
from ..nodes import Block, Conversation, Model, Sealed
from ..prefix import PrefixKey, prefix_key
from ..staging import Room
from .aead import CIPHER_AT
from .contentkey import ContentKey
from .leaf import OVERHEAD_BYTES, leaf_contexts, open_leaf
from .padding import unpad_leaf
from .page import open_page
from .pagetable import Manifest, Page, SealedLeaf
from .sealing import pin_page


class Place(NamedTuple):
    """Where a leaf lies sealed, and what opens it."""

    sealed: Cid
    context: bytes
    digest: bytes
    size_bytes: int
    """Of the leaf itself, without padding."""
    name_is_digest: bool
    """Whether the leaf's CID holds the same digest."""


@dataclass(frozen=True)
class Part:
    """One page that was opened."""

    pins: Cid
    """The pin set of the page and its leaves."""
    nodes: dict[Cid, bytes]
    """Its blocks, and its segment if it is the first of it."""
    leaves: dict[Cid, Cid]
    """Sealed leaf -> leaf."""


class OpenedTable:
    """What is known of one sealed conversation. May be used from several threads."""

    def __init__(self, sealed: Sealed, key: ContentKey, manifest: Buffer) -> None:
        """Open the first page. Raises `AuthFailed`, `UnsupportedFormat`, `MalformedNode`."""
        self._key = key
        self._commitment = sealed.commitment
        self._leaf_key = key.leaf_key()
        self._lock = Lock()
        self._alg = sealed.alg
        self._expect_cipher(manifest, "page")
        first = Manifest.decode(open_page(key, sealed.commitment, manifest))
        self.conversation = Conversation.decode(first.root)
        self.model = Model.decode(first.model)
        self.root = self.conversation.cid()
        """The conversation by the name it has at home."""
        _expect(self.conversation.model == self.model.cid(), "model")
        self._sealed_bytes = first.leaf_bytes + OVERHEAD_BYTES
        self._nodes = {self.root: first.root, self.conversation.model: first.model}
        self._places: dict[Cid, Place] = {}
        self._parts: dict[Cid, list[Part]] = {}
        self._pages: dict[Cid, list[Cid]] = {segment: [] for segment in self.conversation.segments}
        for entry in first.pages:
            _expect(entry.segment < len(self.conversation.segments), "pages")
            self._pages[self.conversation.segments[entry.segment]].append(entry.cid)
        # A page holds a block at least. Pages of a segment are read together, so a list without end would be memory.
        _expect(all(len(pages) <= MAX_SEGMENT_LINKS for pages in self._pages.values()), "pages")
        tail = self.conversation.tail
        position = self.conversation.length - len(tail.tokens)
        before = None if first.tail_prefix is None else PrefixKey(first.tail_prefix)
        self._place(tail.kv or (), tail.tokens, position, before, first.tail)

    def unread_pages(self, cid: Cid) -> list[Cid]:
        """List the pages that `learn` needs for a segment: none once it is known, and none for anything else."""
        with self._lock:
            return [] if cid in self._parts else self._pages.get(cid, [])

    def learn(self, segment: Cid, pages: Sequence[Buffer]) -> None:
        """Take in all pages of a segment. Raises `AuthFailed`, `UnsupportedFormat`, `MalformedNode`."""
        names = self._pages[segment]
        parts = [self._part(cid, data) for cid, data in zip(names, pages, strict=True)]
        _expect(parts and segment in parts[0].nodes, "segment")
        with self._lock:
            self._parts[segment] = parts
            for part in parts:
                self._nodes.update(part.nodes)

    def parts(self, segment: Cid) -> list[Part]:
        """Give what was learned of a segment."""
        with self._lock:
            return self._parts.get(segment, [])

    def node(self, cid: Cid) -> bytes | None:
        """Give a node that was learned."""
        with self._lock:
            return self._nodes.get(cid)

    def place(self, leaf: Cid) -> Place | None:
        """Say where a leaf lies, if its page was learned."""
        with self._lock:
            return self._places.get(leaf)

    def open(self, place: Place, data: Buffer, room: Room) -> memoryview:
        """Open a sealed leaf.

        Raises `DigestMismatch` for bytes that are not what was asked for; `AuthFailed` for those that are, and do not
        open: whoever sealed them did it wrongly.
        """
        try:
            if len(data) != self._sealed_bytes:
                raise AuthFailed(f"a sealed leaf of {len(data)} bytes, not {self._sealed_bytes}", noun="leaf")
            later = place.name_is_digest  # whoever takes the leaf compares it with its name
            self._expect_cipher(data, "leaf")
            padded = open_leaf(self._leaf_key, place.context, place.digest, data, room, hashed_later=later)
            return unpad_leaf(padded, place.size_bytes)
        except AuthFailed:
            place.sealed.verify(data)
            raise

    def _expect_cipher(self, data: Buffer, noun: str) -> None:
        """Refuse another cipher than the signed grant names. Raises `AuthFailed`."""
        if len(data) > CIPHER_AT and data[CIPHER_AT] != self._alg:
            raise AuthFailed(f"a sealed {noun} under another cipher than its grant names", noun=noun)

    def _part(self, cid: Cid, data: Buffer) -> Part:
        self._expect_cipher(data, "page")
        page = Page.decode(open_page(self._key, self._commitment, data))
        nodes = {} if page.segment is None else {Cid.of(page.segment, "dag-cbor", "sha2-256"): page.segment}
        sealed = {leaf.cid: leaf for leaf in page.leaves}
        leaves: dict[Cid, Cid] = {}
        before = None if page.prefix is None else PrefixKey(page.prefix)
        at = 0
        for index, node in enumerate(page.blocks, page.start):
            block = Block.decode(node)
            nodes[Cid.of(node, "dag-cbor", "sha2-256")] = node
            own = page.leaves[at : at + len(block.kv)]
            self._place(block.kv, block.tokens, index * self.conversation.block_size, before, own)
            leaves.update(zip((leaf.cid for leaf in own), block.kv, strict=True))
            before = prefix_key(block.model, before, block.tokens)
            at += len(block.kv)
        _expect(at == len(page.leaves) and len(sealed) == at, "leaves")
        return Part(pin_page(cid, page.leaves).cid(), nodes, leaves)

    def _place(
        self,
        leaves: Sequence[Cid],
        tokens: Sequence[int],
        position: int,
        before: PrefixKey | None,
        sealed: Sequence[SealedLeaf],
    ) -> None:
        model = self.model
        groups = layer_groups(model.num_layers, model.layers_per_leaf)
        _expect(len(leaves) == len(sealed) and len(leaves) in (0, len(groups)), "leaves")
        contexts = leaf_contexts(model, self.conversation.model, position, tokens, before)
        for leaf, each, context, (_, layers) in zip(leaves, sealed, contexts, groups, strict=False):
            size_bytes = leaf_bytes(
                layers, len(tokens), num_kv_heads=model.num_kv_heads, head_dim=model.head_dim, dtype=model.kv_dtype,
                scheme=model.kv_quant_scheme,
            )  # fmt: skip
            with self._lock:
                self._places[leaf] = Place(each.cid, context, each.digest, size_bytes, leaf.digest == each.digest)


def _expect(holds: object, field: str) -> None:
    if not holds:
        raise MalformedNode(f"the page table does not agree with its conversation in {field!r}", field=field)
