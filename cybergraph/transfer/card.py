"""Model cards: sign one, check who did, and write it with all that it lists as one file."""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

from ..access.ed25519 import verify
from ..access.identity import Identity
from ..cid import Cid
from ..errors import Refused
from ..nodes import Conversation, Model, ModelCard, Signature
from ..store.base import Store
from .plan import Item, Kind, PublishPlan
from .progress import SILENT, Progress
from .publish import publish_car


def sign_card(card: ModelCard, producer: Identity) -> ModelCard:
    """Sign a card. The same card and key give the same signature again."""
    blank = replace(card, signature=None)
    key = producer.signing.public_key().public_bytes_raw()
    return replace(blank, signature=Signature(key, producer.signing.sign(blank.encode())))


def check_signature(card: ModelCard) -> bytes | None:
    """Check who signed a card and give the signer's Ed25519 key, or None for an unsigned card.

    The signature is over the card's bytes with `signature` null. It says who wrote the list, and so whose word it is
    that these conversations are right. Raises `BadKey`, `BadSignature`.
    """
    if card.signature is None:
        return None
    verify(card.signature.signer, card.signature.signature, replace(card, signature=None).encode(), "model card")
    return card.signature.signer


def check_exact(cid: Cid, conversation: Conversation) -> None:
    """Refuse a conversation that no card may list: one whose bytes are approximate. Raises `Refused`."""
    if conversation.approx is not None:
        raise Refused(
            f"{cid} is approximate ({conversation.approx:.80}), and a model card lists exact conversations alone",
            hint="record its text again with `cyberkv prefill`", cid=str(cid), field="approx", got=conversation.approx,
        )  # fmt: skip


@dataclass(frozen=True)
class CardPlan:
    """A card, its model, and the conversations that it lists: what goes into one file."""

    card: ModelCard
    model: Model
    conversations: tuple[PublishPlan, ...]

    @cached_property
    def items(self) -> tuple[Item, ...]:
        """The card, its model, and the items of each conversation in writing order; what several share stands once."""
        items: dict[Cid, Item] = {}
        nodes: tuple[tuple[ModelCard | Model, Kind], ...] = ((self.card, "card"), (self.model, "model"))
        own = (Item(node.cid(), kind, len(node.encode())) for node, kind in nodes)
        for item in chain(own, *(plan.items for plan in self.conversations)):
            items.setdefault(item.cid, item)
        return tuple(items.values())

    @property
    def root(self) -> Cid:
        """The CID of the card."""
        return self.card.cid()

    @property
    def cids(self) -> tuple[Cid, ...]:
        """The CIDs of all items."""
        return tuple(item.cid for item in self.items)

    @property
    def bytes(self) -> int:
        """Bytes of all items."""
        return sum(item.size_bytes for item in self.items)

    @property
    def leaf_bytes(self) -> int:
        """Bytes of the leaves alone."""
        return sum(item.size_bytes for item in self.items if item.cid.codec == "raw")


def publish_card(store: Store, plan: CardPlan, path: Path, progress: Progress = SILENT) -> int:
    """Keep a card and write it with all that it lists as one CAR file. Returns its size in bytes.

    Raises as `publish_car`.
    """
    store.put_many(made for each in plan.conversations for made in each.made)
    store.put_node(plan.model)
    store.put_node(plan.card)
    return publish_car(store, plan, path, progress)
