"""Make the derived tables anew from a store's blocks, and bring back lost names from titles."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ..cid import Cid
from ..database import Database, Transaction
from ..errors import BadReference
from ..nodes import Conversation
from ..store.base import Store
from ..survey import Survey
from .blocks import DERIVED_TABLES
from .keying import sign
from .marks import MARK_TABLES, encode_name
from .records import UNKNOWN_DOMAIN, IndexEntry

if TYPE_CHECKING:
    from . import Index

_LAST_CHARS: Final = 12
"""Of a CID: enough to tell those of one home apart."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild found."""

    blocks: int
    """Blocks indexed."""
    detached: list[Cid] = field(default_factory=list)
    """Blocks that cannot be indexed, because one before them is absent or of another model."""
    unreadable: list[Cid] = field(default_factory=list)
    """Nodes that are damaged."""
    conversations: list[Cid] = field(default_factory=list)
    """Every conversation root, ordered by CID."""
    names: list[str] = field(default_factory=list)
    """Names restored from titles."""


def rebuild(index: "Index", database: Database, store: Store, secret: bytes | None) -> Rebuilt:
    """Do the work of `Index.rebuild`.

    The writer lock is held throughout, so no block added meanwhile is lost.
    """

    def work(txn: Transaction) -> Rebuilt:
        was_lost = not any(txn.stat(database[table])["entries"] for table in (*DERIVED_TABLES, *MARK_TABLES))
        domains = index.known_domains()
        index.mend_names(txn)
        for table in DERIVED_TABLES:
            txn.drop(database[table], delete=False)
        if secret is not None:
            sign(database, txn, secret)
        survey = Survey.of(store)
        approximate = _approximate_blocks(survey)
        indexed, detached = 0, []
        for cid, (prev, model) in sorted(survey.blocks.items()):
            if cid in approximate:
                continue
            if (prefix := survey.prefix_key_of(store, cid)) is None:
                detached.append(cid)
                continue
            if index.is_given_up(txn, prefix, cid):  # by an edit
                continue
            for domain in domains.get(cid, [UNKNOWN_DOMAIN]):
                index.add(txn, IndexEntry(prefix, cid, prev, model, domain))
            indexed += 1
        names = _restore_names(index, txn, store, survey) if was_lost else []
        return Rebuilt(indexed, detached, sorted(survey.unreadable), sorted(survey.conversations), names)

    return database.write(work)


def _approximate_blocks(survey: Survey) -> set[Cid]:
    """List the blocks whose tokens do not decide their bytes.

    Those are the blocks that only approximate conversations hold, and what was computed on top of them: a program that
    was killed stored such blocks before it could write a root.
    """
    exact: set[Cid] = set()
    found: set[Cid] = set()
    for conversation in survey.conversations.values():
        (exact if conversation.approx is None else found).update(survey.blocks_of(conversation))
    following: dict[Cid | None, list[Cid]] = {}
    for cid, (prev, _) in survey.blocks.items():
        following.setdefault(prev, []).append(cid)
    approximate = found - exact
    ahead = list(approximate)
    while ahead:
        further = [cid for cid in following.get(ahead.pop(), ()) if cid not in approximate and cid not in exact]
        approximate.update(further)
        ahead += further
    return approximate


def _restore_names(index: "Index", txn: Transaction, store: Store, survey: Survey) -> list[str]:
    """Name every whole conversation by its title, and what is sealed, which shows none, by its CID.

    What was locked would else be held by nobody, and be collected. Only for an index that held nothing at all: in any
    other, what has no name was forgotten or never had one.
    """
    titled: dict[bytes, list[tuple[str, Cid]]] = {}
    for cid, conversation in survey.conversations.items():
        key = _title_key(conversation)
        if key is not None and survey.is_whole(store, conversation):
            titled.setdefault(key, []).append((conversation.created, cid))
    for cid in survey.sealed:
        titled.setdefault(encode_name(f"sealed-{str(cid)[-_LAST_CHARS:]}"), []).append(("", cid))
    for key, roots in sorted(titled.items()):
        for created, root in sorted(roots):
            index.append(txn, key, root, created)
    return [key.decode() for key in sorted(titled)]


def _title_key(conversation: Conversation) -> bytes | None:
    try:
        return encode_name(conversation.title)
    except BadReference:
        return None
