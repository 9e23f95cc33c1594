"""Sealed pages: the page table of a sealed conversation, which holds its nodes and names its sealed leaves.

A page is "CKM", the number of the cipher, a salt of 16 bytes, and AES-256-GCM, under the key of this page, of its
content behind its length and filled up with zeros. The commitment to the content key is authenticated with it.
"""

import hashlib
from typing import Final

from ..cid import Buffer
from .aead import HEAD_BYTES, PAGE, TAG_BYTES, cipher_of, decrypt_into, encrypt
from .contentkey import SALT_BYTES, ContentKey
from .padding import LEAST_BYTES, pad, unpad

_LEAST_SEALED_BYTES: Final = HEAD_BYTES + SALT_BYTES + LEAST_BYTES + TAG_BYTES


def seal_page(key: ContentKey, commitment: bytes, content: bytes, alg: int) -> memoryview:
    """Give the sealed page; the same content under the same key is the same page."""
    salt = key.page_salt(hashlib.sha256(content).digest())
    return encrypt(PAGE, alg, key.page_key(salt), commitment, pad(content), clear=salt)


def open_page(key: ContentKey, commitment: bytes, sealed: Buffer) -> bytes:
    """Give the content. Raises `AuthFailed` for bytes that are not a page under this key, `UnsupportedFormat`."""
    alg = cipher_of(PAGE, sealed, _LEAST_SEALED_BYTES)
    view = memoryview(sealed)
    salt, ciphertext = bytes(view[HEAD_BYTES : HEAD_BYTES + SALT_BYTES]), view[HEAD_BYTES + SALT_BYTES :]
    padded = bytearray(len(ciphertext) - TAG_BYTES)
    decrypt_into(PAGE, alg, key.page_key(salt), commitment, ciphertext, padded)
    return unpad(bytes(padded))
