"""Names of conversations that nobody had to think up, and what a name stood for before."""

import re
import shlex

from ..cybergraph.chain import load_root
from ..cybergraph.cid import TEXT_CHARS, Cid
from ..cybergraph.errors import BadReference, NameNotFound
from ..cybergraph.index import Index
from ..cybergraph.index.marks import encode_name
from .context import Session
from .identities import leave_readers
from .output import remark

MOST_WORDS = 6
MOST_CHARS = 40
ANY = "conversation"


def slug(text: str) -> str:
    """Make a name of the first words of a text.

    >>> slug("What is a KV cache, and why would I keep it?"), slug("?!"), slug("bafyreibbb")
    ('what-is-a-kv-cache-and', 'conversation', 'conversation')
    """
    words = re.findall(r"\w+", text[: 8 * MOST_CHARS].lower())[:MOST_WORDS]
    name = "-".join(words)[:MOST_CHARS].strip("-_")
    return name if _is_name(name) else ANY


def unique(index: Index, base: str) -> str:
    """Give `base`, or `base-2`, `base-3`, … if that is taken; shortened where it would grow too long for a name."""
    taken = {head.name for head in index.heads()}
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}-{number}"
        if not _is_name(name):
            base = slug(base)
            name, number = base, 1
    return name


def is_whole(ref: str) -> bool:
    """Say whether a reference has the length of a CID."""
    return len(ref) == TEXT_CHARS and ref.startswith("b")


def _is_name(name: str) -> bool:
    try:
        encode_name(name)
    except BadReference:
        return False
    return True


def name_of_head(index: Index, ref: str, root: Cid) -> str | None:
    """Give the conversation that goes on from `root`: the name typed, or the only one that ends there."""
    names = [head.name for head in index.heads() if head.root == root]
    if ref in names:
        return ref
    return names[0] if len(names) == 1 else None


def say_moves(session: Session, name: str, goes_on_from: Cid | None) -> None:
    """Say so where `name` stands for another conversation than the one that goes on: it is about to move."""
    try:
        before = session.index.head(name).root
    except NameNotFound:
        return
    if before != goes_on_from:
        again = f"cyberkv log {shlex.quote(name)}"
        remark(session, f"{name} names {before} so far and moves to this conversation; `{again}` keeps both")
        leave_readers(session, name, before)


def record_head(session: Session, root: Cid, name: str | None) -> str:
    """Make the conversation the head of a name: the one given, one it heads already, or one of its title."""
    if name is None:
        name = next((head.name for head in session.index.heads() if head.root == root), None)
    if name is None:
        base = load_root(session.store, root).title
        name = unique(session.index, base if _is_name(base) else slug(base))  # foreign text
    say_moves(session, name, root)
    session.index.set_head(name, root, session.now())
    return name
