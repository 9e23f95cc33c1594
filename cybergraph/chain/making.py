"""Making a root: of blocks that are stored, and of the first tokens of another conversation."""

from collections.abc import Sequence
from itertools import islice

from ..cid import Cid
from ..errors import BlockNotFound, OutOfRange
from ..limits import MAX_SEGMENT_LINKS
from ..nodes import Block, Conversation, NextBlock, Node, Segment, Tail
from ..store.base import Store
from .checking import check_root
from .reading import block_cids, load_root


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
        raise OutOfRange(
            f"cannot fork at {at}, the conversation has {root.length} tokens", hint=f"give 0 to {root.length}", at=at,
            tokens=root.length,
        )  # fmt: skip
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
