"""Signed roots: make a receipt, and check one.

A receipt attributes: this key says that this program gave this conversation with this model. Whether that is so takes a
recomputation.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from ..cid import Cid
from ..errors import MalformedNode
from ..index import UNKNOWN_DOMAIN, Index
from ..nodes import UNSIGNED, Conversation, Receipt
from .ed25519 import verify
from .identity import Identity

ATTRIBUTION: Final = "it says who claims this, not that it is right"


def make_receipt(
    producer: Identity, conversation: Conversation, code: str, domain: str | None, prev: Cid | None = None
) -> Receipt:
    """Sign a root. The same claim gives the same receipt again."""
    key = producer.signing.public_key().public_bytes_raw()
    claim = Receipt(conversation.cid(), conversation.model, key, code, domain, prev, UNSIGNED)
    return replace(claim, signature=producer.signing.sign(claim.body()))


def check_receipt(receipt: Receipt, conversation: Conversation | None = None) -> None:
    """Check who signed, and with the `conversation` that it is the one that was signed.

    Raises `BadKey`, `BadSignature`, `MalformedNode`.
    """
    verify(receipt.producer, receipt.signature, receipt.body(), "receipt")
    if conversation is None:
        return
    for field, signed, found in (
        ("root", receipt.root, conversation.cid()),
        ("model", receipt.model, conversation.model),
    ):
        if signed != found:
            raise MalformedNode(
                f"the receipt names {field} {signed}, the conversation has {found}",
                hint="the signature is genuine and belongs to something else",
                field=field, expected=str(signed), got=str(found),
            )  # fmt: skip


def common_domain(index: Index, blocks: Iterable[Cid]) -> str | None:
    """Give the numeric domain in which every block was computed here; None where there is no such one."""
    domains = {index.domain_of(block) for block in blocks}
    domain = domains.pop() if len(domains) == 1 else None
    return None if domain == UNKNOWN_DOMAIN else domain
