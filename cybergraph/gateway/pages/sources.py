"""What every page is made from."""

import re
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from ...cid import Cid
from ...foreign import AnyCid
from ...nodes import Conversation, Receipt
from .heat import Heats
from .reader import Reader
from .words import Words

MOST_COMPARED: Final = 100
"""Published conversations, the newest, among which sharing and forks are looked for."""
MOST_FOLDED: Final = 2048
"""Roots, the newest, among which receipts are told from conversations to count each once."""
NEAR: Final = 8
"""Roots on either side of a conversation among which its receipts are looked for."""
_NUMBER: Final = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class Sources:
    """Nodes, words and numbers."""

    reader: Reader
    words: Words
    heats: Heats

    def known(self) -> tuple[list[tuple[Cid, Conversation]], bool]:
        """List the newest conversations that may be shown, and say whether there are more roots than were looked at."""
        roots = self.reader.content.roots()
        signed = list(dict.fromkeys(map(self.unsigned, roots[:MOST_COMPARED])))
        return self.reader.conversations(signed), len(roots) > MOST_COMPARED

    def unsigned(self, cid: AnyCid) -> AnyCid:
        """Give what a receipt signs in place of it; anything else as it is."""
        receipt = None if self.reader.conversation(cid) else self.reader.receipt(cid)
        return cid if receipt is None else receipt.root

    def folded(self) -> dict[AnyCid, bool]:
        """List the roots, the newest first, each conversation once; and whether a receipt signs it."""
        shown: dict[AnyCid, bool] = {}
        for at, cid in enumerate(self.reader.content.roots()):
            root = self.unsigned(cid) if at < MOST_FOLDED else cid
            shown[root] = shown.get(root, False) or root != cid
        return shown

    def receipts(self, root: Cid) -> list[tuple[Cid, Receipt]]:
        """List the receipts of a conversation, one of each signer, their signatures checked.

        They are looked for beside it among the roots, which have their place by time.
        """
        roots = self.reader.content.roots()
        at = roots.index(root) if root in roots else 0
        found: dict[bytes, tuple[Cid, Receipt]] = {}
        for cid in roots[max(at - NEAR, 0) : at + NEAR + 1]:
            receipt = None if self.reader.conversation(cid) else self.reader.receipt(cid)
            if receipt is not None and receipt.root == root and isinstance(cid, Cid):
                found.setdefault(receipt.producer, (cid, receipt))
        return list(found.values())


def asked(request: Request, name: str, most: int) -> int:
    """Read a number from the query, from 0 to `most`; 0 for anything that is none."""
    text = request.query_params.get(name, "")
    return min(int(text), max(most, 0)) if _NUMBER.fullmatch(text) else 0
