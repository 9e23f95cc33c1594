"""Check everything a home claims: bytes, nodes, conversations, index. Reads only."""

from collections.abc import Iterator
from dataclasses import dataclass

from .. import chain
from ..cid import Cid
from ..errors import BlockNotFound, Corrupt, DigestMismatch
from ..index import Index
from ..survey import Survey
from .base import Finding, Store

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
    unnamed_conversations: int = 0
    """Roots without a name or publication: forgotten, or a fetch that stopped. They may be incomplete."""
    foreign_nodes: int = 0
    """Sound dag-cbor of types or versions this program does not know."""


def fsck(store: Store, index: Index, counts: Counts | None = None) -> Iterator[Finding]:
    """Check a store and its index, and count into `counts` if it is given.

    Checked: the store's own structures; the hash of every block; the form of every node; that all of every
    named, logged or published conversation is here and fits together; that every index entry is what its
    block says. Time: one read of the whole store.
    """
    counts = Counts() if counts is None else counts
    yield from store.check()
    survey = Survey.of(store)
    counts.nodes, counts.foreign_nodes = survey.nodes, survey.foreign
    counts.conversations = len(survey.conversations)
    for cid, error in survey.unreadable.items():
        yield Finding(cid, "block" if isinstance(error, DigestMismatch) else "node", str(error))
    reported: set[Cid | None] = set(survey.unreadable)
    for finding in _check_leaves(store, survey, counts):
        reported.add(finding.cid)
        yield finding
    roots = index.roots()
    counts.unnamed_conversations = len(survey.conversations.keys() - set(roots))
    yield from _check_conversations(store, survey, roots, reported)
    yield from index.check()
    yield from _check_entries(store, index, survey, counts)


def _check_leaves(store: Store, survey: Survey, counts: Counts) -> Iterator[Finding]:
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
        counts.orphan_leaves += cid not in survey.leaves


def _check_conversations(
    store: Store, survey: Survey, roots: list[Cid], reported: set[Cid | None]
) -> Iterator[Finding]:
    whole: list[Cid] = []
    for root in roots:
        if root not in survey.conversations:
            if root not in reported and not store.has(root):
                yield Finding(root, "conversation", "is in use and not here")
            continue
        try:
            for _ in chain.walk(store, survey.conversations[root]):
                pass
            whole.append(root)
        except (BlockNotFound, DigestMismatch):
            whole.append(root)  # what is absent or damaged is reported by its own CID
        except Corrupt as error:
            yield Finding(root, "conversation", str(error))
    for cid in chain.missing(store, *whole):
        if cid not in reported:
            yield Finding(cid, "conversation", "is not here, and a conversation in use needs it")


def _check_entries(store: Store, index: Index, survey: Survey, counts: Counts) -> Iterator[Finding]:
    for entry in index.entries():
        counts.index_entries += 1
        if entry.block in survey.unreadable:
            continue  # reported as a damaged block
        if entry.block not in survey.blocks:
            yield Finding(entry.block, "index", "names a block that is not here")
            continue
        if (entry.prev, entry.model) != survey.blocks[entry.block]:
            yield Finding(entry.block, "index", "has another model or previous block than the block itself")
        elif (prefix := survey.prefix_key_of(store, entry.block)) is None:
            counts.detached_entries += 1
        elif prefix != entry.prefix:
            reason = f"is filed under {entry.prefix.hex()}, its tokens give {prefix.hex()}"
            yield Finding(entry.block, "index", reason)
