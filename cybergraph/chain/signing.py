"""Receipts as a store holds them. Who signed is checked elsewhere."""

from collections.abc import Iterable, Iterator
from contextlib import suppress

from ..cid import Cid
from ..errors import CyberKVError
from ..nodes import Receipt, decode_node
from ..store.base import Store


def receipts_among(store: Store, cids: Iterable[Cid]) -> Iterator[Receipt]:
    """Give the receipts among some nodes, as far as they are here; what they say is not checked."""
    for cid in cids:
        with suppress(CyberKVError):
            node = None if cid.codec == "raw" else decode_node(store.get(cid))
            if isinstance(node, Receipt):
                yield node


def read_receipt(store: Store, cid: Cid) -> Receipt | None:
    """Give the receipt that a CID names here, or None for anything else."""
    return next(receipts_among(store, [cid]), None)
