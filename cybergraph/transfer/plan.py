"""What publishing a conversation would make public, listed before anything is done.

Publishing cannot be taken back, so the plan comes first and costs nothing: it names every block by CID, kind and
size, and what is withheld. To act on it is a second step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from ..chain import fork_root, load_root, missing, walk
from ..cid import Cid
from ..errors import BlockNotFound, NotPublic
from ..index import Index
from ..nodes import Conversation, Model
from ..policy import Span, public_prefix, withheld
from ..store.base import Store, not_found
from ..store.wrap import DraftStore
from .shape import Shape, check_leaf

Kind = Literal["root", "model", "segment", "block", "leaf", "tail-leaf", "sealed", "receipt", "card"]
Visibility = Literal["public"]

_SHOWN_CIDS = 20


class Item(NamedTuple):
    """One block that becomes public."""

    cid: Cid
    kind: Kind
    size_bytes: int


class Withheld(NamedTuple):
    """Something of the conversation that stays here: a node that it names, or a span of its tokens."""

    cid: Cid | None
    reason: str
    start: int | None = None
    end: int | None = None

    def __str__(self) -> str:
        return f"{f'tokens {self.start}:{self.end}' if self.cid is None else self.cid}: {self.reason}"


@dataclass(frozen=True)
class PublishPlan:
    """Everything that becomes public, in the order in which it is written: a node before what it links to."""

    root: Cid
    """What the rest hangs on: CID of `conversation`, or of the receipt that signs it."""
    conversation: Conversation
    """The root node that becomes public: as recorded, but without the CID of a parent that is not public. A CID is a
    hash of private text and lets anyone test guesses at it. Of a conversation that is public in part, the tokens before
    the first private one, without its title, which may have words of the rest."""
    visibility: Visibility
    items: tuple[Item, ...]
    """Root, model, segments, then each block followed by its leaves, then the rows of the tail."""
    withheld: tuple[Withheld, ...]
    public_already: int
    """How many of the items were published before."""
    made: tuple[tuple[Cid, bytes], ...]
    """Nodes of the public form that the store lacks: its root, and a segment that was cut."""

    @property
    def is_part(self) -> bool:
        """Whether some tokens stay here."""
        return any(each.cid is None for each in self.withheld)

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


def plan_publish(
    store: Store, index: Index, root_cid: Cid, visibility: Visibility | None, spans: Sequence[Span] | None = None
) -> PublishPlan:
    """List what publishing `root_cid` makes public. Changes nothing.

    The default is private: raises `NotPublic` unless `visibility` is "public". `spans` (as `policy.lay` gives
    them) say what of it is public; then only the tokens before the first private one are, as a conversation of their
    own, and `NotPublic` is raised where there are none. Raises `BlockNotFound` naming what is absent; `DigestMismatch`,
    `MalformedNode` or `LimitExceeded` for what a reader would refuse as well.
    """
    if visibility != "public":
        raise NotPublic(
            f"{root_cid} stays private: publishing was not asked for",
            hint="--public lets anyone read it, for good; `publish REF --dry-run` shows first what that is",
            cid=str(root_cid),
        )
    root, draft = load_root(store, root_cid), DraftStore(store)
    held = tuple(Withheld(None, each.reason, each.start, each.end) for each in withheld(spans or ()))
    if held:
        root_cid, root = _cut(draft, root_cid, root, spans or ())
    if absent := missing(draft, root_cid):
        raise BlockNotFound(
            f"{root_cid} is not whole here: {len(absent)} blocks are missing, the first is {absent[0]}",
            hint="fetch it again, then publish", cid=str(absent[0]), count=len(absent),
            missing=[str(cid) for cid in absent[:_SHOWN_CIDS]],
        )  # fmt: skip
    if root.parent is not None and not index.is_public(root.parent):
        reason = "the private conversation this one was forked from; the public root omits it"
        held = (Withheld(root.parent, reason), *held)
        draft.delete_many([root_cid])
        root = replace(root, parent=None, fork_at=None)
        root_cid = draft.put_node(root)
    shape = Shape(root_cid, root, Model.decode(store.get(root.model)))
    items: dict[Cid, Item] = {}
    for cid, kind, expected_bytes in _closure(draft, root_cid, root, shape):
        size_bytes = draft.size_bytes(cid)
        if size_bytes is None:
            raise not_found(cid)  # deleted since `missing` looked
        if expected_bytes is not None:
            check_leaf(cid, expected_bytes, size_bytes)
        items.setdefault(cid, Item(cid, kind, size_bytes))
    already = sum(index.is_public(cid) for cid in items)
    made = tuple((cid, draft.drafts.get(cid)) for cid in draft.drafts.cids())
    return PublishPlan(root_cid, root, visibility, tuple(items.values()), held, already, made)


def _cut(draft: DraftStore, root_cid: Cid, root: Conversation, spans: Sequence[Span]) -> tuple[Cid, Conversation]:
    """Make the root of the public beginning: whole blocks, and the tokens up to the boundary without rows."""
    at = public_prefix(spans)
    if not at:
        raise NotPublic(
            f"nothing of {root_cid} may be public: it begins with private tokens {spans[0]}",
            hint=f"`cyberkv mark {root_cid} --public 0:{spans[0].end}` would say otherwise", cid=str(root_cid),
            start=spans[0].start, end=spans[0].end,
        )  # fmt: skip
    shape = Shape(root_cid, root, Model.decode(draft.get(root.model)))
    forked, _ = fork_root(draft, root_cid, at, block_bytes=shape.block_bytes, created=root.created)
    keeps_parent = root.fork_at is not None and root.fork_at <= at
    parent, fork_at = (root.parent, root.fork_at) if keeps_parent else (None, None)
    cut = replace(load_root(draft, forked), parent=parent, fork_at=fork_at)
    draft.delete_many([forked])
    return draft.put_node(cut), cut


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
