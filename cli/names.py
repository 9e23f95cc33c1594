"""Names of conversations that nobody had to think up, and what a name stood for before."""

import re
import shlex
from collections.abc import Callable

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


def root_of(index: Index, name: str) -> Cid | None:
    """Give the root that a name ends at, None where there is no such name."""
    try:
        return index.head(name).root
    except NameNotFound:
        return None


def say_moves(session: Session, name: str, goes_on_from: Cid | None) -> Cid | None:
    """Say so where `name` stands for another conversation than the one that goes on: it is about to move.

    Gives the root that it ends at now, from which `keep` may move it.
    """
    before = root_of(session.index, name)
    if before not in (None, goes_on_from):
        again = f"cyberkv log {shlex.quote(name)}"
        remark(session, f"{name} names {before} so far and moves to this conversation; `{again}` keeps both")
        leave_readers(session, name, before)
    return before


def keep(session: Session, name: str, root: Cid, created: str, *, expected: Cid | None) -> str:
    """Make `root` the head of `name`, where that still ends at `expected`; else of a name of its own, which is said.

    Gives the name.
    """
    own, _ = keep_as(session.index, name, lambda _: root, created, expected=expected)
    say_own(session, name, own)
    return own


def keep_as(
    index: Index, name: str, write: Callable[[str], Cid], created: str, *, expected: Cid | None, base: str | None = None
) -> tuple[str, Cid]:
    """Write a root and make it the head of `name`, where that still ends at `expected`; None for a new name.

    Where it has become something else meanwhile, it stays with that, and the root gets a name of its own, made of
    `base`. `write` is given the name to write the root for, and may be called again for another. Gives name and root.
    """
    if root_of(index, name) == expected:  # else a root would be written for nothing
        root = write(name)
        if index.advance(name, root, created, expected=expected):
            return name, root
    if base is None:
        base = name if expected is None else f"{name}-fork"
    while True:
        own = unique(index, base)
        root = write(own)
        if index.advance(own, root, created, expected=None):
            return own, root


def say_own(session: Session, name: str, own: str) -> None:
    """Say so where what was to be kept under one name is kept under a name of its own."""
    if own != name:
        remark(session, f"{name} has become something else meanwhile and stays with that; this is kept as {own}")


def record_head(session: Session, root: Cid, name: str | None) -> str:
    """Make the conversation the head of a name: the one given, one it heads already, or one of its title."""
    if name is None:
        name = next((head.name for head in session.index.heads() if head.root == root), None)
    if name is None:
        base = load_root(session.store, root).title
        name = unique(session.index, base if _is_name(base) else slug(base))  # foreign text
    return keep(session, name, root, session.now(), expected=say_moves(session, name, root))
