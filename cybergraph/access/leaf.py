"""Sealed leaves: a leaf as ciphertext that opens only with the content key, in its place, and to the bytes it was.

    "CKB" | cipher | AES-256-GCM(key of this leaf, plaintext, "cyberkv/blk/v1" | context)

The context names model, layer group, position, number of tokens, element type and everything before: a leaf that
was moved to another place does not open there. The key follows from content key, context and digest of the
plaintext; AES-GCM alone would let one ciphertext open under two keys, the digest does not.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..cid import Buffer, Cid
from ..dagcbor import Value, encode
from ..errors import AuthFailed, LimitExceeded
from ..leafsize import layer_groups
from ..limits import MAX_LEAF_BYTES
from ..nodes import Model
from ..prefix import PrefixKey, prefix_key
from ..staging import Room, heap_room
from .aead import HEAD_BYTES, LEAF, TAG_BYTES, cipher_of, decrypt_into, encrypt
from .contentkey import derive

OVERHEAD_BYTES: Final = HEAD_BYTES + TAG_BYTES


@dataclass(frozen=True, slots=True)
class LeafContext:
    """Where a leaf belongs."""

    model: Cid
    group: int
    """Index of its layer group."""
    position: int
    """Position of its first token."""
    tokens: int
    """Number of tokens; in a tail fewer than in a block."""
    dtype: str
    prefix: PrefixKey
    """Stands for these tokens and all before them."""

    def digest(self) -> bytes:
        """Give 32 bytes that no other place has."""
        fields: dict[str, Value] = {
            "m": bytes(self.model), "l": self.group, "k": "KV", "p": self.position, "n": self.tokens, "d": self.dtype,
            "x": bytes(self.prefix),
        }  # fmt: skip
        return hashlib.sha256(encode(fields)).digest()


def leaf_contexts(
    model: Model, model_cid: Cid, position: int, tokens: Sequence[int], before: PrefixKey | None
) -> list[bytes]:
    """Give the context digest of each leaf of a block or tail, lowest layers first.

    `before` is the prefix key of the block before.
    """
    prefix = prefix_key(model_cid, before, tokens)
    groups = range(len(layer_groups(model.num_layers, model.layers_per_leaf)))
    return [LeafContext(model_cid, group, position, len(tokens), model.kv_dtype, prefix).digest() for group in groups]


def seal_leaf(
    leaf_key: bytes, context: bytes, plaintext: Buffer, alg: int, digest: bytes | None = None, room: Room = heap_room
) -> tuple[memoryview, bytes]:
    """Give the sealed leaf, in memory from `room`, and the digest of its plaintext, which is needed to open it.

    `context` is a `LeafContext.digest()`; `digest` is given where it is known already. Raises
    `LimitExceeded` for what would be larger than a leaf may be.
    """
    if len(plaintext) > MAX_LEAF_BYTES - OVERHEAD_BYTES:
        raise LimitExceeded(
            f"a leaf of {len(plaintext)} bytes is too large to be sealed, {MAX_LEAF_BYTES - OVERHEAD_BYTES} fit",
            hint="record with fewer layers in a leaf", size_bytes=len(plaintext),
        )  # fmt: skip
    digest = digest or hashlib.sha256(plaintext).digest()
    return encrypt(LEAF, alg, derive(leaf_key, "blk", context, digest), context, plaintext, room=room), digest


def open_leaf(
    leaf_key: bytes,
    context: bytes,
    digest: bytes,
    sealed: Buffer,
    room: Room = heap_room,
    *,
    hashed_later: bool = False,
) -> memoryview:
    """Give the plaintext, in memory from `room`.

    With `hashed_later` the caller compares the digest: it hashes the plaintext anyway. Raises `AuthFailed` for bytes
    that are not this leaf, `UnsupportedFormat`.
    """
    alg = cipher_of(LEAF, sealed, OVERHEAD_BYTES)
    plaintext = room(len(sealed) - OVERHEAD_BYTES)
    key = derive(leaf_key, "blk", context, digest)
    decrypt_into(LEAF, alg, key, context, memoryview(sealed)[HEAD_BYTES:], plaintext)
    if not hashed_later and hashlib.sha256(plaintext).digest() != digest:
        raise AuthFailed("a sealed leaf opens to other bytes than its page names", noun="leaf")
    return plaintext
