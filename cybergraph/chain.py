"""Conversations as chains of blocks: build a root, walk it, list what it needs. Pure functions over a store.

A conversation is a page table: the root links to segments, a segment to up to 256 blocks, a block to its
leaves. Everything here loops over pages and never recurses, so a conversation may be any length.

>>> from .nodes import EMPTY_TAIL
>>> from .store import MemoryStore
>>> store, model = MemoryStore(), Cid.of(b"model", "dag-cbor", "sha2-256")
>>> leaf = Cid.of(b"KV", "raw", "blake3")
>>> first = store.put_node(Block(model, None, (1, 2), (leaf,)))
>>> second = store.put_node(Block(model, first, (3, 4), (leaf,)))
>>> blocks = [first, second]
>>> root = build_root(store, model=model, block_size=2, blocks=blocks, tail=EMPTY_TAIL, payload_bytes=4)
>>> tokens(store, load_root(store, root))
[1, 2, 3, 4]
>>> missing(store, root) == [model, leaf]
True
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import NamedTuple

from .cid import Cid
from .errors import BadReference, BlockNotFound, DigestMismatch, MalformedNode, OutOfRange
from .limits import MAX_SEGMENT_LINKS
from .nodes import Block, Conversation, Model, NextBlock, Node, Segment, Tail, decode_node
from .store.base import Store


@dataclass(frozen=True, slots=True)
class Step:
    """One block of a walk."""

    index: int
    position_start: int
    """Position of the block's first token."""
    cid: Cid
    block: Block


class Common(NamedTuple):
    """What two conversations share from their start on."""

    common_tokens: int
    common_blocks: int
    shared_bytes: int
    """Payload of the common blocks' leaves that are in the store."""


def build_root(
    store: Store,
    *,
    model: Cid,
    block_size: int,
    blocks: Sequence[Cid],
    tail: Tail,
    payload_bytes: int,
    title: str = "",
    created: str = "",
    parent: Cid | None = None,
    fork_at: int | None = None,
    approx: str | None = None,
) -> Cid:
    """Write the segments and the root of a conversation and give the root's CID.

    `blocks` and the leaves of `tail` should be stored already. `payload_bytes` counts the bytes of all
    leaves. Full segments depend on the blocks before them alone, so growth and forks store them once. Raises
    `MalformedNode` for values no root may hold.
    """
    segments: list[Node] = []
    prev: Cid | None = None
    for start in range(0, len(blocks), MAX_SEGMENT_LINKS):
        links = []
        for index, cid in enumerate(blocks[start : start + MAX_SEGMENT_LINKS], start):
            links.append(NextBlock(from_=prev, to=cid, position_start=index * block_size))
            prev = cid
        segments.append(Segment(model=model, start=start, links=tuple(links)))
    encoded = [segment.encode() for segment in segments]
    cids = [Cid.of(data, "dag-cbor", "sha2-256") for data in encoded]
    root = Conversation(
        model=model, block_size=block_size, length=len(blocks) * block_size + len(tail.tokens),
        segments=tuple(cids), tail=tail, parent=parent, fork_at=fork_at, approx=approx,
        title=title, created=created, bytes=payload_bytes,
    )  # fmt: skip
    check_root(root)
    encoded.append(root.encode())
    cids.append(Cid.of(encoded[-1], "dag-cbor", "sha2-256"))
    store.put_many(zip(cids, encoded, strict=True), hashed=True)
    return cids[-1]


def fork_root(
    store: Store, root_cid: Cid, at: int, *, block_bytes: int, title: str = "", created: str = ""
) -> tuple[Cid, int]:
    """Write the root of the first `at` tokens of a conversation; give its CID and the number of blocks it shares.

    Every full block before the cut is shared. The tokens after it become the tail, without rows: those are computed
    when the conversation goes on. `block_bytes` is the payload of one block. Raises `OutOfRange` beyond the end,
    `BlockNotFound` where a leaf of a shared block is not here, else as `block_cids`.
    """
    root = load_root(store, root_cid)
    if not 0 <= at <= root.length:
        raise OutOfRange(f"cannot fork at {at}, the conversation has {root.length} tokens", at=at, tokens=root.length)
    full, rest = divmod(at, root.block_size)
    blocks = list(islice(block_cids(store, root), full + 1))
    _require_leaves(store, root_cid, blocks[:full])
    if full < len(blocks):
        cut = Tail(Block.decode(store.get(blocks[full])).tokens[:rest], rest, None, None)
    else:
        cut = Tail(root.tail.tokens[:rest], min(rest, root.tail.prefilled), None, None)
    cid = build_root(
        store, model=root.model, block_size=root.block_size, blocks=blocks[:full], tail=cut,
        payload_bytes=full * block_bytes, title=title, created=created, parent=root_cid, fork_at=at, approx=root.approx,
    )  # fmt: skip
    return cid, full


def _require_leaves(store: Store, root: Cid, blocks: Sequence[Cid]) -> None:
    """Refuse to share what made room for others: a fork has no peer that could bring it back."""
    absent = [leaf for cid in blocks for leaf in store.missing(Block.decode(store.get(cid)).kv)]
    if absent:
        raise BlockNotFound(
            f"{len(absent)} leaves of the blocks to be shared are not here, the first is {absent[0]}",
            hint=f"`cyberkv fetch {root}` brings back what came from a peer; then fork", cid=str(absent[0]),
        )  # fmt: skip


def check_root(root: Conversation) -> None:
    """Check that the counts of a root agree with each other. Raises `MalformedNode` naming the field."""
    tail, size = root.tail, root.block_size
    if len(tail.tokens) >= size:
        raise _inconsistent("conversation", "tail", f"fewer than {size} tokens", len(tail.tokens))
    if tail.prefilled > len(tail.tokens):
        raise _inconsistent("conversation", "tail.prefilled", f"at most {len(tail.tokens)}", tail.prefilled)
    if tail.kv is not None and (tail.domain is None or not tail.tokens):
        raise _inconsistent("conversation", "tail.kv", "rows with tokens and a domain", "rows without")
    blocks, rest = divmod(root.length - len(tail.tokens), size)
    if rest:
        raise _inconsistent("conversation", "length", f"full blocks of {size} and the tail", root.length)
    pages = -(-blocks // MAX_SEGMENT_LINKS)
    if len(root.segments) != pages:
        raise _inconsistent("conversation", "segments", f"{pages} for {blocks} blocks", len(root.segments))


def load_root(store: Store, cid: Cid) -> Conversation:
    """Read a conversation's root, verified.

    Raises `BlockNotFound`, `BadReference` for a CID that names something else, `MalformedNode` for counts that do not
    agree.
    """
    root = None if cid.codec == "raw" else decode_node(store.get(cid))
    if not isinstance(root, Conversation):
        raise BadReference(
            f"{cid} is a {type(root).TYPE if root else 'leaf'}, not a conversation",
            hint="`cyberkv find --block CID` names the conversations that hold a block",
            cid=str(cid),
        )
    check_root(root)
    return root


def block_cids(store: Store, root: Conversation) -> Iterator[Cid]:
    """List the blocks of a conversation in order, checking every segment against the root.

    Raises `BlockNotFound` for a segment that is not here, `MalformedNode` for one that does not fit.
    """
    count = (root.length - len(root.tail.tokens)) // root.block_size
    prev: Cid | None = None
    for start, cid in zip(range(0, count, MAX_SEGMENT_LINKS), root.segments, strict=True):
        segment = Segment.decode(store.get(cid))
        expected = min(MAX_SEGMENT_LINKS, count - start)
        _expect(cid, "model", root.model, segment.model)
        _expect(cid, "start", start, segment.start)
        _expect(cid, "links", expected, len(segment.links))
        for index, link in enumerate(segment.links, start):
            _expect(cid, "from", prev, link.from_)
            _expect(cid, "position_start", index * root.block_size, link.position_start)
            yield link.to
            prev = link.to


def walk(store: Store, root: Conversation) -> Iterator[Step]:
    """Read the blocks of a conversation in order, checking that each one belongs where it stands.

    Checked: model, the block before, the number of tokens, one number of leaves for all, and every segment as
    in `block_cids`. Raises `BlockNotFound`, `DigestMismatch`, `MalformedNode` naming the block and the field.
    """
    prev: Cid | None = None
    leaves: int | None = None
    for index, cid in enumerate(block_cids(store, root)):
        step = checked_step(root, index, prev, cid, Block.decode(store.get(cid)))
        leaves = leaves or len(step.block.kv)
        _expect(cid, "kv", leaves, len(step.block.kv))
        yield step
        prev = cid


def checked_step(root: Conversation, index: int, prev: Cid | None, cid: Cid, block: Block) -> Step:
    """Check that a block belongs at `index`, after `prev`. Raises `MalformedNode` naming the field."""
    _expect(cid, "model", root.model, block.model)
    _expect(cid, "prev", prev, block.prev)
    _expect(cid, "tokens", root.block_size, len(block.tokens))
    return Step(index, index * root.block_size, cid, block)


def misfit(block: Block, *, model: Cid, prev: Cid | None, tokens: Sequence[int], leaves: int) -> str | None:
    """Name the first field in which a block is not what one place in a conversation needs, or None if it fits."""
    needed = {"model": model, "prev": prev, "tokens": tuple(tokens)}
    wrong = (field for field, value in needed.items() if getattr(block, field) != value)
    return next(wrong, None if len(block.kv) == leaves else "kv")


def tokens(store: Store, root: Conversation) -> list[int]:
    """Give every token of a conversation, tail included. Raises as `walk`."""
    return [token for step in walk(store, root) for token in step.block.tokens] + list(root.tail.tokens)


def closure(store: Store, *roots: Cid) -> Iterator[Cid]:
    """List everything the conversations need, each CID once.

    Order: root, model, segments, blocks and leaves in chain order, tail leaves. Parents are not followed.
    Raises `BlockNotFound` for a node that is not here, `MalformedNode` for a link to a node of another type;
    leaves and models are named without being looked at.
    """
    for cid, _ in _visit(store, roots, lenient=False):
        yield cid


def missing(store: Store, *roots: Cid) -> list[Cid]:
    """List what the conversations need and the store lacks, as far as it can be known now; nodes come first.

    What hangs below an absent node shows only after the node has been stored: ask again until nothing is
    missing. A damaged node counts as absent. Raises `MalformedNode`.
    """
    absent: list[Cid] = []
    unseen: list[Cid] = []
    for cid, here in _visit(store, roots, lenient=True):
        if here is None:
            unseen.append(cid)
        elif not here:
            absent.append(cid)
    return absent + store.missing(unseen)


def usable_blocks(store: Store, blocks: Sequence[Cid]) -> int:
    """Count the leading blocks of a chain that are here with every one of their leaves."""
    for count, cid in enumerate(blocks):
        try:
            block = Block.decode(store.get(cid))
        except (BlockNotFound, DigestMismatch):
            return count
        if store.missing(block.kv):
            return count
    return len(blocks)


def common_prefix(store: Store, a: Conversation, b: Conversation) -> Common:
    """Compare two conversations from their start: tokens, blocks, bytes. Raises as `block_cids`."""
    blocks_a, blocks_b = list(block_cids(store, a)), list(block_cids(store, b))
    shared = _count_equal(iter(blocks_a), iter(blocks_b))
    sizes = (store.size_bytes(leaf) for cid in blocks_a[:shared] for leaf in Block.decode(store.get(cid)).kv)
    rest_a, rest_b = (
        _tokens_of(store, blocks_a[shared:], a.tail),
        _tokens_of(store, blocks_b[shared:], b.tail),
    )
    return Common(shared * a.block_size + _count_equal(rest_a, rest_b), shared, sum(size or 0 for size in sizes))


def _count_equal(a: Iterator[object], b: Iterator[object]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def _tokens_of(store: Store, blocks: Sequence[Cid], tail: Tail) -> Iterator[int]:
    for cid in blocks:
        yield from Block.decode(store.get(cid)).tokens
    yield from tail.tokens


def _visit(store: Store, roots: Sequence[Cid], *, lenient: bool) -> Iterator[tuple[Cid, bool | None]]:
    """Go over the closures, each CID once, saying whether it is here: None for what is named but not read."""
    seen: set[Cid] = set()
    pending: list[tuple[Cid, type[Node] | None]] = [(cid, Conversation) for cid in reversed(roots)]
    while pending:
        cid, kind = pending.pop()
        if cid in seen:
            continue
        seen.add(cid)
        if kind is None or kind is Model:
            yield cid, None
            continue
        try:
            node = kind.decode(store.get(cid))
        except (BlockNotFound, DigestMismatch):
            if not lenient:
                raise
            yield cid, False
            continue
        yield cid, True
        pending.extend(reversed(_below(node)))


def _below(node: Node) -> list[tuple[Cid, type[Node] | None]]:
    match node:
        case Conversation():
            segments = [(cid, Segment) for cid in node.segments]
            return [(node.model, Model), *segments, *((cid, None) for cid in node.tail.kv or ())]
        case Segment():
            return [(link.to, Block) for link in node.links]
        case Block():
            return [(cid, None) for cid in node.kv]
    return []


def _expect(cid: Cid, field: str, expected: object, got: object) -> None:
    if expected != got:
        raise _inconsistent(f"node {cid}", field, str(expected), got, cid=str(cid))


def _inconsistent(what: str, field: str, expected: str, got: object, **data: str) -> MalformedNode:
    return MalformedNode(
        f"{what}: field {field!r}: expected {expected}, got {got}",
        hint="the nodes are each sound but do not belong together; do not use this conversation",
        field=field, expected=expected, got=str(got), **data,
    )  # fmt: skip
