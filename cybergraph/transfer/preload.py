"""Preload: the conversations that a model card lists, brought into a store before the first prompt."""

from collections.abc import Collection, Sequence

from ..cid import Cid
from ..errors import IdentityMismatch, Untrusted
from ..index import Index
from ..nodes import Conversation, Model, ModelCard
from ..peers import Peer
from ..store.base import Store
from .card import check_exact, check_signature
from .fetch import FetchReport, fetch_several, nothing
from .head import Begin
from .progress import SILENT, Progress


def require_trusted(card: ModelCard, trusted: Collection[bytes] | None) -> bytes | None:
    """Check that a card is signed by one of `trusted`, by Ed25519 key, and give the signer. None lets any card pass.

    Raises `Untrusted` for an unsigned card and for one of somebody else; `BadKey`, `BadSignature` in any case.
    """
    signer = check_signature(card)
    if trusted is not None and signer not in trusted:
        by = "nobody signed it" if signer is None else f"it is signed by {signer.hex()}, whom this home does not trust"
        raise Untrusted(
            f"the conversations of model card {card.name!r:.80} are not taken: {by}",
            hint="--trust KEY trusts who signed; --trust unsigned takes this one card, whoever made it",
            cid=str(card.cid()), signers=[] if signer is None else [signer.hex()],
        )  # fmt: skip
    return signer


def preload(
    store: Store,
    index: Index,
    card: ModelCard,
    model: Model,
    peers: Sequence[Peer],
    *,
    trusted: Collection[bytes] | None,
    progress: Progress = SILENT,
    free_bytes: int | None = None,
    begin: Begin = nothing,
) -> list[FetchReport]:
    """Fetch every conversation of a card, for the model that is loaded, and keep the card.

    `trusted` are the keys of signers whose cards are taken, None takes any. `begin` as in `fetch`. Raises as
    `require_trusted`; `IdentityMismatch` for a card of another model; both before anything moves. For a listed
    conversation of another model `IdentityMismatch`, for an approximate one `Refused`, both naming it; else as `fetch`.
    """
    signer = require_trusted(card, trusted)
    if card.model != model.cid():
        raise IdentityMismatch(
            f"the card is for model {card.model}, loaded is {model.cid()}",
            hint="`cyberkv model diff` names what differs",
            field="model",
            expected=str(model.cid()),
            got=str(card.model),
        )

    opened: dict[Cid, Conversation] = {}

    def begun(root: Cid, conversation: Conversation) -> None:
        check_exact(root, conversation)
        opened[root] = conversation
        if len(opened) == len(set(card.preload)):  # of a card that is refused nothing is remembered
            for each in opened.items():
                begin(*each)

    reports = fetch_several(
        store, index, card.preload, peers, expect=model, progress=progress, free_bytes=free_bytes,
        signers={} if signer is None else dict.fromkeys(card.preload, signer), begin=begun,
    )  # fmt: skip
    store.put_node(card)
    return reports
