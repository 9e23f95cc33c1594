"""Preload: the conversations that a model card lists, brought into a store before the first prompt."""

from collections.abc import Sequence
from dataclasses import replace

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from ..errors import Corrupt, IdentityMismatch
from ..index import Index
from ..nodes import Model, ModelCard
from ..peers import Peer
from ..store.base import Store
from .fetch import FetchReport, fetch
from .progress import SILENT, Progress


def check_signature(card: ModelCard) -> bytes | None:
    """Check who signed a card and give the signer's key, or None for an unsigned card. Raises `Corrupt`.

    The signature is Ed25519 over the card's bytes with `signature` null. It says who wrote the list, and nothing
    about the blocks; those are checked against their CIDs.
    """
    if card.signature is None:
        return None
    try:
        key = Ed25519PublicKey.from_public_bytes(card.signature.signer)
        key.verify(card.signature.signature, replace(card, signature=None).encode())
    except (InvalidSignature, ValueError) as error:
        raise Corrupt(
            f"the signature of model card {card.name!r:.80} does not fit its content",
            hint="get the card again from its author",
            signer=card.signature.signer.hex(),
        ) from error
    return card.signature.signer


def preload(
    store: Store, index: Index, card: ModelCard, model: Model, peers: Sequence[Peer], *, progress: Progress = SILENT
) -> list[FetchReport]:
    """Fetch every conversation of a card, for the model that is loaded.

    Raises `IdentityMismatch` for a card of another model, before anything is fetched, and for a listed conversation
    of another model; `Corrupt` for a bad signature; else as `fetch`.
    """
    check_signature(card)
    if card.model != model.cid():
        raise IdentityMismatch(
            f"the card is for model {card.model}, loaded is {model.cid()}",
            hint="`cyberkv model diff` names what differs",
            field="model",
            expected=str(model.cid()),
            got=str(card.model),
        )
    return [fetch(store, index, root, peers, expect=model, progress=progress) for root in card.preload]
