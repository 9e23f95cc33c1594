"""Secrets under a passphrase: Argon2id makes a key of it, slowly, and AES-256-GCM does the rest.

The parameters stand beside the secret. They are bounded both ways when it is opened: a file that asks for a terabyte
of memory is refused, and so is one whose parameters somebody has weakened.
"""

import secrets
from dataclasses import dataclass
from typing import Annotated, Final, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from ..dagcbor import check_canonical, parse
from ..errors import BadKey
from ..nodes.base import Record
from ..nodes.kinds import Bytes, Uint
from .contentkey import KEY_BYTES, SALT_BYTES

MEMORY_KIB: Final = 64 << 10
PASSES: Final = 3
LANES: Final = 4
LEAST_MEMORY_KIB, MOST_MEMORY_KIB = 19 << 10, 1 << 20
LEAST_PASSES, MOST_PASSES = 2, 10
_LOCKED_BYTES: Final = KEY_BYTES + 16
_NONCE: Final = bytes(12)
"""The key is used once: its salt is drawn anew for each lock."""


@dataclass(frozen=True, slots=True)
class Lock(Record):
    """32 secret bytes under a passphrase."""

    salt: Annotated[bytes, Bytes(SALT_BYTES)]
    memory_kib: Annotated[int, Uint((1 << 32) - 1)]
    passes: Annotated[int, Uint((1 << 32) - 1)]
    lanes: Annotated[int, Uint(255, least=1)]
    locked: Annotated[bytes, Bytes(_LOCKED_BYTES)]

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read canonical dag-cbor. Raises `MalformedNode`, `MalformedCbor`."""
        found = cls.from_item(parse(data))
        check_canonical(data, found.encode())
        return found


def lock(secret: bytes, passphrase: str, purpose: str) -> Lock:
    """Lock 32 bytes; takes a fifth of a second and 64 MiB. `purpose` has to be the same to open it."""
    salt = secrets.token_bytes(SALT_BYTES)
    key = _stretch(passphrase, salt, MEMORY_KIB, PASSES, LANES)
    aad = _aad(purpose, salt, MEMORY_KIB, PASSES, LANES)
    return Lock(salt, MEMORY_KIB, PASSES, LANES, AESGCM(key).encrypt(_NONCE, secret, aad))


def unlock(locked: Lock, passphrase: str, purpose: str) -> bytes:
    """Give the 32 bytes. Raises `BadKey` for a wrong passphrase and for parameters out of bounds."""
    if not (
        LEAST_MEMORY_KIB <= locked.memory_kib <= MOST_MEMORY_KIB
        and LEAST_PASSES <= locked.passes <= MOST_PASSES
        and locked.lanes <= LANES
    ):
        raise BadKey(
            f"this {purpose} asks for {locked.memory_kib} KiB and {locked.passes} passes: out of bounds, not tried",
            memory_kib=locked.memory_kib, passes=locked.passes,
        )  # fmt: skip
    key = _stretch(passphrase, locked.salt, locked.memory_kib, locked.passes, locked.lanes)
    aad = _aad(purpose, locked.salt, locked.memory_kib, locked.passes, locked.lanes)
    try:
        return AESGCM(key).decrypt(_NONCE, locked.locked, aad)
    except InvalidTag:
        raise BadKey(f"wrong passphrase for this {purpose}", hint="or its bytes were changed") from None


def _stretch(passphrase: str, salt: bytes, memory_kib: int, passes: int, lanes: int) -> bytes:
    kdf = Argon2id(salt=salt, length=KEY_BYTES, iterations=passes, lanes=lanes, memory_cost=memory_kib)
    try:
        return kdf.derive(passphrase.encode())
    except UnicodeEncodeError:
        raise BadKey("a passphrase is text, this one holds other bytes", hint="set the terminal to UTF-8") from None
    except MemoryError:
        raise BadKey(f"there are no {memory_kib} KiB of memory for this passphrase", memory_kib=memory_kib) from None


def _aad(purpose: str, salt: bytes, *parameters: int) -> bytes:
    return f"cyberkv/lock/v1/{purpose}".encode() + salt + b"".join(each.to_bytes(4, "big") for each in parameters)
