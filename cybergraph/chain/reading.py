"""Reading a conversation: its root, its pages, and its blocks in order, each checked against its place."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..cid import Cid
from ..errors import BadReference
from ..limits import MAX_SEGMENT_LINKS
from ..nodes import Block, Conversation, Sealed, Segment, decode_node
from ..store.base import Store
from .checking import check_root, expect


@dataclass(frozen=True, slots=True)
class Step:
    """One block of a walk."""

    index: int
    position_start: int
    """Position of the block's first token."""
    cid: Cid
    block: Block


def load_root(store: Store, cid: Cid) -> Conversation:
    """Read a conversation's root, verified.

    Raises `BlockNotFound`, `BadReference` for a CID that names something else, `MalformedNode` for counts that do not
    agree.
    """
    root = None if cid.codec == "raw" else decode_node(store.get(cid))
    if isinstance(root, Sealed):
        raise BadReference(
            f"{cid} is sealed", hint="`cyberkv unlock` opens what was locked here, `cyberkv fetch` what others sealed",
            cid=str(cid),
        )  # fmt: skip
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
        expect(cid, "model", root.model, segment.model)
        expect(cid, "start", start, segment.start)
        expect(cid, "links", expected, len(segment.links))
        for index, link in enumerate(segment.links, start):
            expect(cid, "from", prev, link.from_)
            expect(cid, "position_start", index * root.block_size, link.position_start)
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
        expect(cid, "kv", leaves, len(step.block.kv))
        yield step
        prev = cid


def checked_step(root: Conversation, index: int, prev: Cid | None, cid: Cid, block: Block) -> Step:
    """Check that a block belongs at `index`, after `prev`. Raises `MalformedNode` naming the field."""
    expect(cid, "model", root.model, block.model)
    expect(cid, "prev", prev, block.prev)
    expect(cid, "tokens", root.block_size, len(block.tokens))
    return Step(index, index * root.block_size, cid, block)


def misfit(block: Block, *, model: Cid, prev: Cid | None, tokens: Sequence[int], leaves: int) -> str | None:
    """Name the first field in which a block is not what one place in a conversation needs, or None if it fits."""
    needed = {"model": model, "prev": prev, "tokens": tuple(tokens)}
    wrong = (field for field, value in needed.items() if getattr(block, field) != value)
    return next(wrong, None if len(block.kv) == leaves else "kv")


def tokens(store: Store, root: Conversation) -> list[int]:
    """Give every token of a conversation, tail included. Raises as `walk`."""
    return [token for step in walk(store, root) for token in step.block.tokens] + list(root.tail.tokens)
