"""Fetching what was published for some: which key opens it, and what is remembered of the grant."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..cybergraph.errors import BadKey, BadReference, MalformedNode, NotARecipient
from .context import Session
from .identities import access_folder, names_to_try, open_key, password
from .vouching import Vouching

if TYPE_CHECKING:
    from ..cybergraph.access import ContentKey, Identity, ShareLink
    from ..cybergraph.cid import Cid
    from ..cybergraph.nodes import Grant, Sealed
    from ..cybergraph.peers import Peer
    from ..cybergraph.peers.base import Prover
    from ..cybergraph.transfer import FetchReport
    from ..cybergraph.transfer.progress import Progress


def read_link(ref: str) -> "ShareLink | None":
    """Give the share link that REF is, or that `-` has on standard input; None for something else.

    Raises `BadReference`, which never repeats the link.
    """
    from ..cybergraph.access import ShareLink
    from ..cybergraph.access.link import MAX_LINK_CHARS, SCHEME

    if ref == "-":
        ref = sys.stdin.readline(MAX_LINK_CHARS + 1).strip()
        if not ref.startswith(SCHEME):
            raise BadReference("no share link on standard input", hint="it begins with cyberkv://")
    return ShareLink.parse(ref) if ref.startswith(SCHEME) else None


KEY_PROOF: Final = "key"
RING_PROOF: Final = "ring"
PROOFS: Final = (KEY_PROOF, RING_PROOF)


@dataclass
class Opening:
    """One attempt to fetch a conversation that may be sealed."""

    session: Session
    link: "ShareLink | None"
    password_file: Path | None
    vouching: Vouching
    proof: str = KEY_PROOF
    """How access is proven to whoever asks: one of `PROOFS`."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What is known of the grant afterwards; empty for a conversation that was not sealed."""
    _reader: "Identity | None" = field(default=None, repr=False)
    """Whose key opened the grant."""

    def fetch(
        self, root: "Cid", peers: "Sequence[Peer]", progress: "Progress", *, most_bytes: int | None, free_bytes: int
    ) -> "FetchReport":
        """Fetch a conversation, opening it if it is sealed. Raises as `fetch` and `fetch_sealed`."""
        from ..cybergraph.nodes import Receipt, Sealed
        from ..cybergraph.transfer import fetch
        from ..cybergraph.transfer.fetch_sealed import fetch_sealed
        from ..cybergraph.transfer.signed import fetch_signed

        store, index = self.session.store, self.session.index
        if self.link is None:
            try:
                return fetch(
                    store, index, root, peers, progress=progress, most_bytes=most_bytes, free_bytes=free_bytes,
                    begin=self.vouching.begin,
                )  # fmt: skip
            except MalformedNode as error:
                kind = error.data.get("got")
                if kind not in (Sealed.TYPE, Receipt.TYPE) or error.data.get("cid") != str(root):
                    raise
            if kind == Receipt.TYPE:
                return fetch_signed(
                    store, index, root, peers, self.vouching.heard, progress=progress, most_bytes=most_bytes,
                    free_bytes=free_bytes, begin=self.vouching.begin,
                )  # fmt: skip
        return fetch_sealed(
            store, index, root, peers, self._unlock, prove=partial(self._prover, root, peers), progress=progress,
            most_bytes=most_bytes, free_bytes=free_bytes, begin=self.vouching.begin,
        )  # fmt: skip

    def _unlock(self, sealed: "Sealed", grant: "Grant") -> "ContentKey":
        folder = access_folder(self.session)
        folder.check_seen(grant)
        key = self._by_link(self.link, sealed) if self.link is not None else self._by_grant(grant)
        folder.see(grant)
        self.vouching.signers.append(grant.issuer)
        self.facts = {"epoch": grant.epoch, "issuer": grant.issuer.hex(), "lineage": grant.lineage.hex()}
        return key

    def _prover(self, root: "Cid", peers: "Sequence[Peer]", grant: "Grant", key: "ContentKey") -> "Prover":
        from ..cybergraph.access.proof import Reader
        from ..cybergraph.transfer.fetch_sealed import find_ring

        if self.proof == KEY_PROOF:
            return Reader.of_key(root, grant, key, self.session.now_s)
        if self._reader is None:
            raise BadReference("a link makes nobody one of a ring", hint="leave out --proof ring")
        return Reader.of_ring(root, grant, find_ring(grant, peers), self._reader, self.session.now_s)

    def _by_link(self, link: "ShareLink", sealed: "Sealed") -> "ContentKey":
        link.confirm(sealed.commitment)
        return link.open(password(self.password_file) if link.is_locked else None)

    def _by_grant(self, grant: "Grant") -> "ContentKey":
        self._reader, key = open_by_any(self.session, grant)
        return key


def open_by_any(session: Session, grant: "Grant") -> "tuple[Identity, ContentKey]":
    """Open a grant with whichever key of this home it is for. Raises `NotARecipient`, `BadKey`."""
    from ..cybergraph.access import open_grant

    refusal: NotARecipient | BadKey = NotARecipient(
        "this conversation is sealed, and there is no key here",
        hint="`cyberkv key new` makes one; send what `cyberkv key show` prints to whoever published it",
        epoch=grant.epoch,
    )
    for name in names_to_try(session):  # one after the other: nobody is asked for more than is needed
        try:
            identity = open_key(session, name)
            return identity, open_grant(grant, identity)
        except (NotARecipient, BadKey) as error:
            if not isinstance(refusal, BadKey):  # a key that was not tried may be the one
                refusal = error
    raise refusal
