"""Which blocks of a content are sealed, and the content as it is without them.

Sealed are the blocks below a published sealed root, but for the root itself, its grant and the grant's ring: who
wants to prove access needs these. Two things tell: the pin sets of the sealed roots, which also say whose proof opens a
block; and the first bytes of a leaf or page, so that one whose root or pin set is lost is still kept back.
"""

from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from threading import Lock
from typing import Final

from ..access.aead import LEAF, PAGE
from ..cid import Buffer, Cid
from ..errors import BlockNotFound, CyberKVError
from ..foreign import AnyCid
from ..nodes import links
from ..staging import Room, heap_room
from .content import Content, Runs
from .sealedroot import SealedRoot, read_sealed_root

_MAGIC: Final = (LEAF.magic, PAGE.magic)
_MAGIC_BYTES: Final = 3
MOST_PEEKED: Final = 1 << 14
"""Raw blocks of which it is remembered whether they look sealed, about 200 bytes each."""
_NOTHING: Final[frozenset[AnyCid]] = frozenset()
_WORD: Final = (1 << 64) - 1


class Withheld:
    """The sealed roots of a content, as of the last `refresh`. Safe to use from several threads.

    Memory: some 200 bytes for each sealed block.
    """

    def __init__(self, content: Content) -> None:
        self._content = content
        self._lock = Lock()
        self._listed: list[AnyCid] | None = None
        self._known: dict[AnyCid, SealedRoot | None] = {}
        """Roots that could be read; None for one of another kind."""
        self._all: frozenset[AnyCid] = _NOTHING
        self._named: frozenset[AnyCid] = _NOTHING
        self._contested: frozenset[AnyCid] = _NOTHING
        self._peeked: dict[AnyCid, bool] = {}
        """In the order in which they were looked at. What a CID names never changes, so nothing here goes stale."""

    def refresh(self) -> None:
        """Take note of what was published or withdrawn. Cheap where nothing was."""
        listed = self._content.roots()
        with self._lock:
            if listed != self._listed:
                self._known = {root: each for root, each in self._known.items() if root in {*listed}}
                for root in listed:
                    if root not in self._known:
                        self._read(root)
                self._sum_up()
                self._listed = listed

    def find(self, root: AnyCid) -> SealedRoot | None:
        """Give a sealed root that is published. What could not be read of it before is tried again."""
        self.refresh()
        with self._lock:
            found = self._known.get(root)
            lacking = root if root not in self._known else None if found is None else found.lacking
            if lacking is not None and root in (self._listed or ()) and self._is_sound(lacking):
                self._read(root)
                again = self._known.get(root)
                if again is not None and again.lacking == lacking:  # it is here, and is not what it should be
                    self._known[root] = replace(again, lacking=None)
                self._sum_up()
            return self._known.get(root)

    def by_grant(self, grant: Cid) -> SealedRoot | None:
        """Give the sealed root of a grant."""
        known = list(self._known.values())
        return next((each for each in known if each and each.terms and each.terms.grant == grant), None)

    def opened_by(self, root: AnyCid | None) -> frozenset[AnyCid]:
        """List the sealed blocks that a proof of access to a root opens: none where it is not published any more.

        A pin set is not signed: what two owners list is opened by neither, for one of them has no right to it.
        """
        found = None if root is None else self._known.get(root)
        return _NOTHING if found is None else found.below - self._contested if self._contested else found.below

    def root(self, cid: AnyCid) -> SealedRoot | None:
        """Give the sealed root that a CID names, as far as is known."""
        return self._known.get(cid)

    def is_named(self, cid: AnyCid) -> bool:
        """Say whether a sealed root names this sealed block."""
        return cid in self._named

    def looks_sealed(self, cid: AnyCid) -> bool:
        """Say whether a block begins as a sealed leaf or page does. Raises as `Content.get`."""
        if cid.codec != "raw":
            return False
        if (known := self._peeked.get(cid)) is None:
            known = self._content.peek(cid, _MAGIC_BYTES) in _MAGIC
            with self._lock:
                self._peeked[cid] = known
                if len(self._peeked) > MOST_PEEKED:
                    del self._peeked[next(iter(self._peeked))]
        return known

    @property
    def edition(self) -> str:
        """What tells what is sealed now from what was before; nothing where nothing is."""
        return f"{hash((self._all, self._contested)) & _WORD:x}" if self._all else ""

    def __contains__(self, cid: object) -> bool:
        return cid in self._all

    def _is_sound(self, cid: AnyCid) -> bool:
        try:
            self._content.get(cid)
        except CyberKVError:
            return False
        return True

    def _read(self, root: AnyCid) -> None:
        with suppress(CyberKVError):  # it may come back
            self._known[root] = read_sealed_root(self._content, root)

    def _sum_up(self) -> None:
        sealed = [each for each in self._known.values() if each is not None]
        self._all = _NOTHING.union(*(each.below for each in sealed))
        self._named = frozenset(cid for each in sealed for cid in each.named)
        owned = {each.owner for each in sealed if each.owner is not None}
        lists = [_NOTHING.union(*(each.below for each in sealed if each.owner == owner)) for owner in owned]
        self._contested = _NOTHING.union(*(one & other for one, other in combinations(lists, 2)))


class Shown(Content):
    """A content without what is sealed, but for what one proof has opened. What is hidden is absent."""

    def __init__(self, content: Content, withheld: Withheld, proven: AnyCid | None) -> None:
        """Show also what is below `proven`, a sealed root."""
        self._content = content
        self._withheld = withheld
        self._proven = proven
        self._opened = withheld.opened_by(proven)

    def roots(self) -> list[AnyCid]:
        """See `Content`."""
        self._withheld.refresh()
        return self._content.roots()

    def size_bytes(self, cid: AnyCid) -> int | None:
        """See `Content`. Reads a raw block for its first bytes, once: no method may say more than `get`."""
        size_bytes = None if self._hides(cid) else self._content.size_bytes(cid)
        if size_bytes is None or cid in self._opened:
            return size_bytes
        try:
            return None if self._withheld.looks_sealed(cid) else size_bytes
        except BlockNotFound:  # it went just now
            return None

    def get(self, cid: AnyCid) -> bytes:
        """See `Content`."""
        if self._hides(cid):
            raise _absent(cid)
        data = self._content.get(cid)
        if self._is_kept_back(cid, data):
            raise _absent(cid)
        return data

    def graph(self, root: AnyCid, *, dups: bool, room: Room = heap_room) -> Runs:
        """See `Content`."""
        if self._hides(root):
            return
        sealed = self._withheld.root(root)
        if sealed is not None and root != self._proven:  # the rest is not even read
            yield [(cid, self._content.get(cid)) for cid in (sealed.cid, *sealed.apart)]
            return
        for run in self._content.graph(root, dups=dups, room=room):
            if shown := [pair for pair in run if not self._hides(pair[0]) and not self._is_kept_back(*pair)]:
                yield shown
            del run, shown  # or their memory would stay in use while the next is read

    def edition(self, root: AnyCid) -> str:
        """See `Content`: of what is sealed others may be shown more, or this reader at another time."""
        if self._hides(root):
            raise _absent(root)
        inside = self._content.edition(root)
        if not inside and not self._leads_to_sealed(root):
            return ""
        sealed = self._withheld.edition
        return f"{inside}.{sealed}.{self._proven or 'open'}" if sealed else inside

    def _leads_to_sealed(self, root: AnyCid) -> bool:
        """Say whether a node is a sealed root or, as a receipt may, names one."""
        if root.codec != "dag-cbor":
            return False
        return any(self._withheld.root(cid) is not None for cid in (root, *links(self._content.get(root))))

    def _hides(self, cid: AnyCid) -> bool:
        return cid in self._withheld and cid not in self._opened

    def _is_kept_back(self, cid: AnyCid, data: Buffer) -> bool:
        return cid.codec == "raw" and bytes(data[:_MAGIC_BYTES]) in _MAGIC and cid not in self._opened


def _absent(cid: AnyCid) -> BlockNotFound:
    return BlockNotFound(f"no block {cid} here", cid=str(cid))
