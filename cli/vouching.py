"""Who signed what is being fetched, and what the home remembers of that."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from .context import Session
from .output import remark
from .trust import in_words, named, read_signer, trust_folder

if TYPE_CHECKING:
    from ..cybergraph.cid import Cid
    from ..cybergraph.nodes import Conversation, Receipt

UNSIGNED: Final = "unsigned"
"""With `--trust`, in place of a key: take this conversation whoever signed it, or nobody."""


def is_ours(session: Session, root: "Cid") -> bool:
    """Say whether a conversation is here without having come from anywhere.

    It then stays one that never left: what a copy of it mends makes it neither evictable nor known to others, and to go
    on from it needs nobody's word but that for what it stands on.
    """
    is_here = session.store.has(root) or root in session.index.roots()
    return is_here and root not in session.index.sources() and trust_folder(session).origin(root) is None


@dataclass
class Vouching:
    """The signatures of one fetch."""

    session: Session
    words: tuple[str, ...]
    """What was given with `--trust`: keys, or `unsigned`."""
    has_link: bool
    """Whether it was asked for by a share link: who types one takes the word of whoever gave it."""
    signers: list[bytes] = field(default_factory=list)
    receipt: "Cid | None" = None
    came: bool = False
    """Whether the conversation is one that came from elsewhere."""

    def __post_init__(self) -> None:
        self._keys = [read_signer(word) for word in self.words if word != UNSIGNED]

    def trust_keys(self) -> None:
        """Trust the keys that were given, from now on."""
        for key in self._keys:
            if key not in trust_folder(self.session).trusted():
                trust_folder(self.session).add(key, "")

    def heard(self, receipt: "Receipt") -> None:
        """Take note of a receipt whose signature is good."""
        self.signers.append(receipt.producer)
        self.receipt = receipt.cid()

    def begin(self, root: "Cid", _conversation: "Conversation") -> None:
        """Remember of the conversation that it came from elsewhere and who signed it, before any block is here."""
        if is_ours(self.session, root):
            return
        self.came = True
        receipts = [] if self.receipt is None else [self.receipt]
        accepted = UNSIGNED in self.words or self.has_link
        trust_folder(self.session).note(root, signers=self.signers, receipts=receipts, accepted=accepted)

    def facts(self, root: "Cid") -> dict[str, Any]:
        """Say who signed the conversation, now or in a fetch before, and whether it may be gone on from."""
        from ..cybergraph.access.standing import is_usable

        folder = trust_folder(self.session)
        origin = folder.origin(root) if self.came else None
        signers = self.signers if origin is None else origin.signers
        usable = origin is None or is_usable(origin, folder.trusted())
        return {"receipt": self.receipt, "signed_by": named(self.session, signers), "usable": usable}

    def say(self, facts: dict[str, Any], ref: "Cid") -> None:
        """Say so where the conversation is here only to be looked at."""
        if not facts["usable"]:
            who = in_words(facts["signed_by"])
            remark(
                self.session,
                f"signed by {who}: to look at, not to go on from. `cyberkv trust add KEY` trusts who signed; "
                f"`cyberkv fetch {ref} --trust unsigned` accepts this one conversation",
            )
