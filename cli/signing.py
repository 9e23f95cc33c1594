"""Signing what becomes public: with which key, and what the receipt says."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

from ..cybergraph.errors import Untrusted
from ..cybergraph.nodes import Model
from .context import Session
from .identities import has_key, own_identity
from .output import remark
from .trust import require_usable

if TYPE_CHECKING:
    from ..cybergraph.access import Identity
    from ..cybergraph.cid import Cid
    from ..cybergraph.nodes import Receipt
    from ..cybergraph.transfer import PublishPlan


def choose_signer(
    session: Session, root: "Cid", key_name: str | None, *, sign: bool | None, dry_run: bool
) -> "Identity | None":
    """Open the key that signs a conversation; None where nothing is to be signed.

    Unless `sign` says so, a home signs if it has a key, and if it would go on from the conversation itself: readers
    take a signer's word for it. Where there is no key, gives a new one, which `keep_first` keeps once something
    is published with it; none for a dry run. Raises as `own_identity`, and `Untrusted` where `sign` asks for more.
    """
    from ..cybergraph.access import Identity

    opens = has_key(session) or key_name is not None
    if not (opens if sign is None else sign):
        return None
    try:
        require_usable(session, root)
    except Untrusted as error:
        if sign or key_name:
            raise
        remark(session, f"not signed: {error.message}")
        return None
    if opens:
        return own_identity(session, key_name)
    return None if dry_run else Identity.new()


def sign(session: Session, plan: "PublishPlan", signer: "Identity", name: str | None) -> "Receipt":
    """Sign the conversation of a plan; `name` has the roots before it, whose receipt the new one names."""
    from ..cybergraph.transfer.signed import sign_plan

    rule = Model.decode(session.store.get(plan.conversation.model)).rule
    code = f"cyberkv {version('cyberkv')}, {rule}"
    earlier = [head.root for head in session.index.log(name)] if name else []
    if plan.root in earlier:
        earlier = earlier[: earlier.index(plan.root)]
    key = signer.signing.public_key().public_bytes_raw()
    return sign_plan(session.index, plan, signer, code, _last_receipt(session, earlier, key))


def _last_receipt(session: Session, roots: "Sequence[Cid]", producer: bytes) -> "Cid | None":
    """Give the newest published receipt of one producer for some earlier roots, the oldest of which comes first."""
    known = (session.index.receipt_of(root, producer) for root in reversed(roots))
    return next((receipt for receipt in known if receipt is not None), None)
