"""Forks as a tree: where a conversation comes from, and what goes on from it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ...cid import Cid
from ...nodes import Conversation
from .reader import Reader

MOST_ANCESTORS: Final = 8
MOST_BELOW: Final = 40
"""Descendants shown."""
MOST_DEPTH: Final = 8


@dataclass
class Kin:
    """One conversation of a tree."""

    cid: Cid
    root: Conversation | None
    """None where it is not here."""
    here: bool = False
    """It is the one that the page is about."""
    below: list["Kin"] = field(default_factory=list)


@dataclass(frozen=True)
class Family:
    """The tree around one conversation, and what it leaves out."""

    top: Kin
    more_above: bool
    more_below: bool

    @property
    def alone(self) -> bool:
        """Whether there is nothing but the conversation itself."""
        return self.top.here and not self.top.below


def family(reader: Reader, cid: Cid, root: Conversation, known: Sequence[tuple[Cid, Conversation]]) -> Family:
    """Build the tree: ancestors as links name them, descendants among the `known` conversations."""
    children: dict[Cid, list[tuple[Cid, Conversation]]] = {}
    for other, theirs in known:
        if theirs.parent is not None:
            children.setdefault(theirs.parent, []).append((other, theirs))
    top = Kin(cid, root, here=True)
    more_below = _grow(top, children)
    above, steps = root.parent, 0
    while above is not None and steps < MOST_ANCESTORS:
        theirs_or_none = reader.conversation(above)
        top = Kin(above, theirs_or_none, below=[top])
        above, steps = theirs_or_none.parent if theirs_or_none else None, steps + 1
    return Family(top, more_above=above is not None, more_below=more_below)


def _grow(top: Kin, children: dict[Cid, list[tuple[Cid, Conversation]]]) -> bool:
    """Hang descendants below, level by level, up to the bounds; say whether some are left out."""
    level, shown = [top], 0
    for _ in range(MOST_DEPTH):
        for kin in level:
            for cid, root in children.get(kin.cid, ()):
                if shown == MOST_BELOW:
                    return True
                shown += 1
                kin.below.append(Kin(cid, root))
        level = [below for kin in level for below in kin.below]
    return any(kin.cid in children for kin in level)
