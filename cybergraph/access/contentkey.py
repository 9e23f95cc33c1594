"""The content key of one epoch of a conversation, and every key that follows from it.

Each derived key has a label of its own, and every part of its input is framed by its length, so that no two uses
share a key and no two inputs give one.

>>> key = ContentKey(bytes(range(0x20, 0x40)))
>>> key.leaf_key().hex()[:16]
'84c110e00226dd6e'
>>> key
ContentKey(...)
"""

import hmac
import secrets
from typing import Final, Self

from ..cid import Buffer, Cid
from ..errors import AccessDenied

KEY_BYTES: Final = 32
LINEAGE_BYTES: Final = 16
SALT_BYTES: Final = 16


def framed(*parts: bytes) -> bytes:
    """Put each part behind its length, four bytes big endian."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def derive(key: Buffer, label: str, *context: bytes) -> bytes:
    """Give the 32-byte key that belongs to a label and its context: HMAC-SHA256 over the framed parts."""
    return hmac.digest(key, framed(f"cyberkv/v1/{label}".encode(), *context), "sha256")


class ContentKey:
    """32 secret bytes. They are never shown, compared early or pickled."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        """Take the bytes. Raises `AccessDenied` for another number of them."""
        if len(secret) != KEY_BYTES:
            raise AccessDenied(f"a content key has {KEY_BYTES} bytes, this one {len(secret)}")
        self._secret = secret

    @classmethod
    def new(cls) -> Self:
        """Draw a fresh key from the system."""
        return cls(secrets.token_bytes(KEY_BYTES))

    def reveal(self) -> bytes:
        """Give the bytes, to wrap them for a reader."""
        return self._secret

    def leaf_key(self) -> bytes:
        """Give the key from which the key of each leaf is derived."""
        return derive(self._secret, "block-key")

    def page_key(self, salt: bytes) -> bytes:
        """Give the key of one page of the page table."""
        return derive(self._secret, "manifest-key", salt)

    def page_salt(self, digest: bytes) -> bytes:
        """Give the salt of a page by the digest of its plaintext: the same page is sealed to the same bytes."""
        return derive(self._secret, "manifest-salt", digest)[:SALT_BYTES]

    def commitment(self, issuer: bytes, lineage: bytes, epoch: int) -> bytes:
        """Give the public value that binds issuer, lineage and epoch to this key and to no other."""
        return derive(self._secret, "commit", issuer, lineage, epoch.to_bytes(8, "big"))

    def access_seed(self, root: Cid) -> bytes:
        """Give the seed of the key pair by which every reader of `root` shows access."""
        return derive(self._secret, "access", root)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ContentKey) and hmac.compare_digest(self._secret, other._secret)

    __hash__ = None  # type: ignore[assignment]  # a secret is no key of a dictionary

    def __repr__(self) -> str:
        return "ContentKey(...)"

    def __reduce__(self) -> str:
        raise TypeError("a content key is not pickled")
