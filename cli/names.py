"""Names of conversations that nobody had to think up."""

import re

from ..cybergraph.cid import Cid
from ..cybergraph.index import Index

MOST_WORDS = 6
MOST_CHARS = 40


def slug(text: str) -> str:
    """Make a name of the first words of a text.

    >>> slug("What is a KV cache, and why would I keep it?"), slug("?!")
    ('what-is-a-kv-cache-and', 'conversation')
    """
    words = re.findall(r"\w+", text[: 8 * MOST_CHARS].lower())[:MOST_WORDS]
    return "-".join(words)[:MOST_CHARS].strip("-_") or "conversation"


def unique(index: Index, base: str) -> str:
    """Give `base`, or `base-2`, `base-3`, … if that is taken."""
    taken = {head.name for head in index.heads()}
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return name


def name_of_head(index: Index, ref: str, root: Cid) -> str | None:
    """Give the conversation that goes on from `root`: the name typed, or the only one that ends there."""
    names = [head.name for head in index.heads() if head.root == root]
    if ref in names:
        return ref
    return names[0] if len(names) == 1 else None
