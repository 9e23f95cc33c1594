"""Prefix keys: the name of a block's *inputs*, known before the work is done.

A CID names bytes and can only verify them; a prefix key names (model, everything before, these tokens) and can find
them. Framing by dag-cbor keeps the parts apart: no two inputs give one key.

>>> model = Cid.of(b"", codec="dag-cbor", hash_name="sha2-256")
>>> first = prefix_key(model, None, (1, 2))
>>> first != prefix_key(model, None, (12,)) and first != prefix_key(model, first, (1, 2))
True
"""

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from typing import NewType

from .cid import Cid
from .dagcbor import encode

PrefixKey = NewType("PrefixKey", bytes)
"""32 bytes."""


def prefix_key(model: Cid, parent: PrefixKey | None, tokens: Sequence[int], *, secret: bytes | None = None) -> PrefixKey:
    """Key of one block. With `secret` (32 bytes) the key is an HMAC, so that nobody without it can test guesses."""
    message = encode([model, parent, list(tokens)])
    if secret is None:
        return PrefixKey(hashlib.sha256(message).digest())
    return PrefixKey(hmac.digest(secret, message, "sha256"))


def prefix_keys(
    model: Cid, tokens: Sequence[int], block_size: int, *, secret: bytes | None = None
) -> Iterator[PrefixKey]:
    """Keys of every full block of a token sequence, in order."""
    parent: PrefixKey | None = None
    for start in range(0, len(tokens) - block_size + 1, block_size):
        parent = prefix_key(model, parent, tokens[start : start + block_size], secret=secret)
        yield parent
