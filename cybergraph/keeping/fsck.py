"""Check everything a home claims: bytes, nodes, conversations, index. Reads only."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .. import chain
from ..cid import Cid
from ..errors import BlockNotFound, Corrupt, DigestMismatch
from ..index import Index
from ..nodes import Conversation, Model
from ..peers import is_file
from ..store.base import Finding, Store
from ..survey import Survey
from ..transfer.shape import Shape
from .reach import fetched

LEAF_PREFIX = bytes.fromhex("0155")
"""First bytes of the CID of any raw block."""


@dataclass(slots=True)
class Counts:
    """What a check went over. None of these is an error."""

    nodes: int = 0
    leaves: int = 0
    leaf_bytes: int = 0
    conversations: int = 0
    index_entries: int = 0
    detached_entries: int = 0
    """Entries that cannot be checked, because a block before theirs is gone; what is gone is a finding."""
    orphan_leaves: int = 0
    """Leaves that no block or tail links to."""
    absent_leaves: int = 0
    """Leaves of fetched conversations that are not here, as after they made room for others: their peer has them."""
    unnamed_conversations: int = 0
    """Roots that no name, publication or pin holds: forgotten, or a fetch that stopped. They may be incomplete."""
    foreign_nodes: int = 0
    """Sound dag-cbor of types or versions this program does not know."""
    orphans: list[Finding] = field(default_factory=list)
    """What nobody holds, with the reason: `gc` deletes it."""


def fsck(store: Store, index: Index, counts: Counts | None = None) -> Iterator[Finding]:
    """Check a store and its index, and count into `counts` if it is given.

    Checked: the store's own structures; the hash of every block; the form of every node; that all of every
    named, logged, published or pinned conversation is here and fits together, every leaf with the size its model
    demands; that every index entry is what its block says. Others may write meanwhile: what has changed since it was
    looked at is no finding. Time: one read of the whole store.
    """
    counts = Counts() if counts is None else counts
    yield from _confirmed(store.check)
    survey = Survey.of(store)
    counts.nodes, counts.foreign_nodes = survey.nodes, survey.foreign
    counts.conversations = len(survey.conversations)
    reported: set[Cid | None] = set()
    for cid, error in survey.unreadable.items():
        if _is_still(store, cid, error):
            reported.add(cid)
            yield Finding(cid, "block" if isinstance(error, DigestMismatch) else "node", str(error))
    for finding in _check_leaves(store, survey.leaves, counts):
        reported.add(finding.cid)
        yield finding
    counts.orphans += _orphans(survey, index)
    counts.unnamed_conversations = sum(each.what == "conversation" for each in counts.orphans)
    counts.orphan_leaves = sum(each.what == "leaf" for each in counts.orphans)
    yield from _confirmed(lambda: _check_conversations(store, index, survey, reported, counts))
    yield from _confirmed(index.check)
    yield from _check_entries(store, index, survey, counts)


def _confirmed(check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Give what is found twice: the tables are read one after the other, and may have changed in between."""
    if first := list(check()):
        again = set(check())
        yield from (each for each in first if each in again)


def _check_leaves(store: Store, linked: set[Cid], counts: Counts) -> Iterator[Finding]:
    for cid in store.cids(LEAF_PREFIX):
        try:
            size_bytes = len(store.get(cid))
        except BlockNotFound:
            continue  # deleted since it was listed
        except Corrupt as error:
            yield Finding(cid, "block", str(error))
            size_bytes = 0
        counts.leaves += 1
        counts.leaf_bytes += size_bytes
        if cid not in linked:
            counts.orphans.append(Finding(cid, "leaf", "no block or tail links to it"))


def _orphans(survey: Survey, index: Index) -> Iterator[Finding]:
    for cid in (survey.conversations.keys() | survey.sealed) - set(index.roots()):
        yield Finding(cid, "conversation", "no name, publication or pin holds it")
    for cid in survey.segments.keys() - {each for root in survey.conversations.values() for each in root.segments}:
        yield Finding(cid, "segment", "no conversation links to it")
    for cid in survey.blocks.keys() - {each for segment in survey.segments.values() for each in segment}:
        yield Finding(cid, "block", "no segment links to it")


def _is_still(store: Store, cid: Cid, error: Corrupt) -> bool:
    """Say whether a node that could not be read is still here as it was."""
    try:
        store.get(cid)
    except BlockNotFound:
        return False
    except DigestMismatch:
        return True
    return not isinstance(error, DigestMismatch)


def _check_conversations(
    store: Store, index: Index, survey: Survey, reported: set[Cid | None], counts: Counts
) -> Iterator[Finding]:
    whole: list[Cid] = []
    measured: set[Cid] = set()
    for root in index.roots():
        if root in survey.sealed:
            whole.append(root)
            continue
        if root not in survey.conversations:
            if root not in reported and not store.has(root):
                yield Finding(root, "conversation", "is in use and not here")
            continue
        try:
            yield from _check_sizes(store, root, survey.conversations[root], measured)
            whole.append(root)
        except (BlockNotFound, DigestMismatch):
            whole.append(root)  # what is absent or damaged is reported by its own CID
        except Corrupt as error:
            yield Finding(root, "conversation", str(error))
    lacking = [cid for cid in chain.missing(store, *whole) if cid not in reported]
    elsewhere = _elsewhere(index) if lacking else set()
    only_here = (
        set(chain.missing(store, *(root for root in whole if root not in elsewhere))) if elsewhere else set(lacking)
    )
    counts.absent_leaves = 0
    for cid in lacking:
        if cid.codec == "raw" and cid not in only_here:
            counts.absent_leaves += 1
        elif not store.has(cid):
            yield Finding(cid, "conversation", "is not here, and a conversation in use needs it")


def _elsewhere(index: Index) -> set[Cid]:
    """List the roots whose leaves somebody else has: gateways are not asked, files are looked for."""
    return {
        root
        for root, sources in fetched(index).items()
        if any(not is_file(source) or Path(source).exists() for source in sources)
    }


def _check_sizes(store: Store, cid: Cid, root: Conversation, measured: set[Cid]) -> Iterator[Finding]:
    """Walk a conversation, checking every block in its place, and the leaves of those that were not `measured`."""
    shape = Shape(cid, root, Model.decode(store.get(root.model)))
    for step in chain.walk(store, root):
        if step.cid not in measured:
            measured.add(step.cid)
            yield from _wrong_sizes(store, step.cid, shape.leaves_of(step.cid, step.block))
    yield from _wrong_sizes(store, cid, shape.tail_leaves)


def _wrong_sizes(store: Store, holder: Cid, leaves: list[tuple[Cid, int]]) -> Iterator[Finding]:
    for leaf, expected_bytes in leaves:
        size_bytes = store.size_bytes(leaf)
        if size_bytes not in (None, expected_bytes):
            yield Finding(leaf, "leaf", f"has {size_bytes} bytes, where {holder} needs {expected_bytes}")


def _check_entries(store: Store, index: Index, survey: Survey, counts: Counts) -> Iterator[Finding]:
    for entry in index.entries():
        counts.index_entries += 1
        if entry.block in survey.unreadable:
            continue  # reported as a damaged block
        if entry.block not in survey.blocks:
            if not store.has(entry.block):  # else it came after the survey
                yield Finding(entry.block, "index", "names a block that is not here")
            continue
        if (entry.prev, entry.model) != survey.blocks[entry.block]:
            yield Finding(entry.block, "index", "has another model or previous block than the block itself")
        elif (prefix := survey.prefix_key_of(store, entry.block)) is None:
            counts.detached_entries += 1
        elif index.filed_as(prefix) != entry.key:
            yield Finding(entry.block, "index", "is filed under another prefix key than its tokens give")
