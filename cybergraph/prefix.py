"""Prefix keys: the name of a block's *inputs*, known before the work is done.

A CID names bytes and can only verify them; a prefix key names (model, everything before, these tokens) and
can find them. Framing by dag-cbor keeps the parts apart: no two inputs give one key.

Whoever has a prefix key can test guesses at the text. So none is ever stored: an index files it under `keyed`.

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
from .dagcbor import NULL, encode_bytes, encode_link, encode_list, encode_tokens

PrefixKey = NewType("PrefixKey", bytes)
"""32 bytes."""
KeyedPrefix = NewType("KeyedPrefix", bytes)
"""32 bytes: a prefix key under a secret. Without the secret it says nothing about the text."""


def prefix_key(model: Cid, parent: PrefixKey | None, tokens: Sequence[int]) -> PrefixKey:
    """Give the key of one block."""
    message = encode_list(
        (encode_link(model), NULL if parent is None else encode_bytes(parent), encode_tokens(tokens)), 3
    )
    return PrefixKey(hashlib.sha256(message).digest())


def keyed(key: PrefixKey, secret: bytes) -> KeyedPrefix:
    """Give the form in which a key may be stored: its HMAC-SHA256 under `secret` (32 bytes)."""
    return KeyedPrefix(hmac.digest(secret, key, "sha256"))


def prefix_keys(model: Cid, tokens: Sequence[int], block_size: int) -> Iterator[PrefixKey]:
    """Give the keys of every full block of a token sequence, in order."""
    parent: PrefixKey | None = None
    for start in range(0, len(tokens) - block_size + 1, block_size):
        parent = prefix_key(model, parent, tokens[start : start + block_size])
        yield parent
