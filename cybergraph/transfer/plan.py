"""What publishing a conversation would make public, listed before anything is done.

Publishing cannot be taken back, so the plan comes first and costs nothing: it names every block by CID, kind and
size, and what is withheld. To act on it is a second step.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from ..chain import load_root, missing, walk
from ..cid import Cid
from ..errors import BlockNotFound, NotPublic
from ..index import Index
from ..nodes import Conversation, Model
from ..store.base import Store, not_found
from .shape import Shape, check_leaf

Kind = Literal["root", "model", "segment", "block", "leaf", "tail-leaf"]
Visibility = Literal["public"]

_SHOWN_CIDS = 20


class Item(NamedTuple):
    """One block that becomes public."""

    cid: Cid
    kind: Kind
    size_bytes: int


class Withheld(NamedTuple):
    """Something the conversation names that stays here."""

    cid: Cid
    reason: str


@dataclass(frozen=True)
class PublishPlan:
    """Everything that becomes public, in the order in which it is written: a node before what it links to."""

    root: Cid
    """CID of `conversation`."""
    conversation: Conversation
    """The root node that becomes public: as recorded, but without the CID of a parent that is not public. A CID is a
    hash of private text and lets anyone test guesses at it."""
    visibility: Visibility
    items: tuple[Item, ...]
    """Root, model, segments, then each block followed by its leaves, then the rows of the tail."""
    withheld: tuple[Withheld, ...]
    public_already: int
    """How many of the items were published before."""

    @property
    def blocks(self) -> int:
        """Number of nodes and leaves."""
        return len(self.items)

    @property
    def bytes(self) -> int:
        """Bytes of all items."""
        return sum(item.size_bytes for item in self.items)

    @property
    def leaf_bytes(self) -> int:
        """Bytes of the leaves alone."""
        return sum(item.size_bytes for item in self.items if item.cid.codec == "raw")

    @property
    def cids(self) -> tuple[Cid, ...]:
        """The CIDs of all items."""
        return tuple(item.cid for item in self.items)


def plan_publish(store: Store, index: Index, root_cid: Cid, visibility: Visibility | None) -> PublishPlan:
    """List what publishing `root_cid` makes public. Changes nothing.

    The default is private: raises `NotPublic` unless `visibility` is "public". Raises `BlockNotFound` naming what
    is absent; `DigestMismatch`, `MalformedNode` or `LimitExceeded` for what a reader would refuse as well.
    """
    if visibility != "public":
        raise NotPublic(
            f"{root_cid} stays private: publishing was not asked for",
            hint="--public lets anyone read it, for good; `publish REF --public --dry-run` shows first what that is",
            cid=str(root_cid),
        )
    root = load_root(store, root_cid)
    if absent := missing(store, root_cid):
        raise BlockNotFound(
            f"{root_cid} is not whole here: {len(absent)} blocks are missing, the first is {absent[0]}",
            hint="fetch it again, then publish", cid=str(absent[0]), count=len(absent),
            missing=[str(cid) for cid in absent[:_SHOWN_CIDS]],
        )  # fmt: skip
    withheld: tuple[Withheld, ...] = ()
    if root.parent is not None and not index.is_public(root.parent):
        withheld = (
            Withheld(root.parent, "the private conversation this one was forked from; the public root omits it"),
        )
        root = replace(root, parent=None, fork_at=None)
        root_cid = root.cid()
    shape = Shape(root_cid, root, Model.decode(store.get(root.model)))
    items: dict[Cid, Item] = {}
    for cid, kind, expected_bytes in _closure(store, root_cid, root, shape):
        size_bytes = len(root.encode()) if kind == "root" else store.size_bytes(cid)
        if size_bytes is None:
            raise not_found(cid)  # deleted since `missing` looked
        if expected_bytes is not None:
            check_leaf(cid, expected_bytes, size_bytes)
        items.setdefault(cid, Item(cid, kind, size_bytes))
    already = sum(index.is_public(cid) for cid in items)
    return PublishPlan(root_cid, root, visibility, tuple(items.values()), withheld, already)


def _closure(store: Store, cid: Cid, root: Conversation, shape: Shape) -> Iterator[tuple[Cid, Kind, int | None]]:
    """Everything in writing order, with the size that each leaf must have."""
    yield cid, "root", None
    yield root.model, "model", None
    for segment in root.segments:
        yield segment, "segment", None
    for step in walk(store, root):
        yield step.cid, "block", None
        for leaf, expected_bytes in shape.leaves_of(step.cid, step.block):
            yield leaf, "leaf", expected_bytes
    for leaf, expected_bytes in shape.tail_leaves:
        yield leaf, "tail-leaf", expected_bytes
