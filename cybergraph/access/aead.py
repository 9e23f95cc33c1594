"""The two ciphers of seal/v1, by number.

The nonce is always zero: every key here is derived for exactly one plaintext, so no nonce can be used twice, and the
same plaintext under the same content key is the same ciphertext.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from ..cid import Buffer
from ..errors import AuthFailed, UnsupportedFormat
from ..staging import Room, heap_room

AES_256_GCM: Final = 1
"""The default: several gigabytes a second on processors with AES instructions."""
CHACHA20_POLY1305: Final = 2
"""For processors without."""
CIPHERS: Final = {"aes-256-gcm": AES_256_GCM, "chacha20-poly1305": CHACHA20_POLY1305}
"""The ciphers by name."""
TAG_BYTES: Final = 16
_NONCE: Final = bytes(12)
_CIPHERS: Final[dict[int, Callable[[bytes], AESGCM | ChaCha20Poly1305]]] = {
    AES_256_GCM: AESGCM,
    CHACHA20_POLY1305: ChaCha20Poly1305,
}


class Form(NamedTuple):
    """What kind of sealed bytes these are."""

    magic: bytes
    """Three bytes at their beginning; the number of the cipher follows."""
    label: bytes
    """Stands before the context in what the cipher authenticates."""
    noun: str


LEAF: Final = Form(b"CKB", b"cyberkv/blk/v1", "leaf")
PAGE: Final = Form(b"CKM", b"cyberkv/man/v1", "page")
CIPHER_AT: Final = 3
HEAD_BYTES: Final = 4


def encrypt(
    form: Form, alg: int, key: bytes, context: bytes, plaintext: Buffer, clear: bytes = b"", room: Room = heap_room
) -> memoryview:
    """Give magic, cipher number, `clear`, ciphertext and tag, in memory from `room`.

    Raises `UnsupportedFormat` for an unknown cipher.
    """
    cipher = _cipher(alg)(key)
    head = form.magic + bytes((alg,)) + clear
    sealed = room(len(head) + len(plaintext) + TAG_BYTES)
    sealed[: len(head)] = head
    cipher.encrypt_into(_NONCE, plaintext, form.label + context, sealed[len(head) :])
    return sealed


def cipher_of(form: Form, sealed: Buffer, least_bytes: int) -> int:
    """Read the head of sealed bytes and give the cipher. Raises `AuthFailed`, `UnsupportedFormat`."""
    head = bytes(sealed[:HEAD_BYTES])
    if head[:3] != form.magic or len(sealed) < least_bytes:
        raise AuthFailed(f"not a sealed {form.noun}", noun=form.noun, size_bytes=len(sealed))
    _cipher(head[CIPHER_AT])
    return head[CIPHER_AT]


def decrypt_into(
    form: Form, alg: int, key: bytes, context: bytes, ciphertext: Buffer, plaintext: bytearray | memoryview
) -> None:
    """Open ciphertext and tag into memory of the right size. Raises `AuthFailed`; then nothing of it may be used."""
    try:
        _cipher(alg)(key).decrypt_into(_NONCE, ciphertext, form.label + context, plaintext)
    except InvalidTag:
        raise AuthFailed(
            f"a sealed {form.noun} does not open: its bytes were changed, or it belongs elsewhere", noun=form.noun
        ) from None


def _cipher(alg: int) -> Callable[[bytes], AESGCM | ChaCha20Poly1305]:
    if alg not in _CIPHERS:
        raise UnsupportedFormat(f"no cipher has the number {alg}", hint="a newer cyberkv may know it", alg=alg)
    return _CIPHERS[alg]
