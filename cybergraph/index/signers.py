"""Blocks that a signed root brought: whose word counts, and where two words differ.

Beside numeric domains, the index notes for a fetched block who signed a conversation that holds it, as `signed:` and
the key. Such a block answers a lookup only while its signer is trusted, and while no other trusted signer names another
block for the same tokens upon the same block before.
"""

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from ..cid import Cid
from .records import UNKNOWN_DOMAIN, Found

SIGNED: Final = "signed:"
_SIGNED: Final = SIGNED.encode()
_UNKNOWN: Final = UNKNOWN_DOMAIN.encode()

Row: TypeAlias = tuple[bytes, bytes, bytes]
"""Block, the block before it, domain: one answer as it is held."""


def signed_domain(signer: bytes) -> str:
    """Give what stands for a signer, by Ed25519 key, in place of a numeric domain."""
    return SIGNED + signer.hex()


def signer_of(domain: str) -> bytes | None:
    """Give the signer that stands in place of a numeric domain, or None for a domain."""
    return bytes.fromhex(domain.removeprefix(SIGNED)) if domain.startswith(SIGNED) else None


def is_own(domain: str) -> bool:
    """Say whether a block was computed here, in some numeric domain."""
    return domain != UNKNOWN_DOMAIN and not domain.startswith(SIGNED)


def usable(rows: Sequence[Row], trusted: frozenset[bytes]) -> Sequence[Row]:
    """Leave out what may not answer a lookup. `trusted` holds signers as they stand in rows."""
    own = [row for row in rows if row[2] != _UNKNOWN and not row[2].startswith(_SIGNED)]
    if len(own) == len(rows) or not trusted:
        return own
    computed = {block for block, _, _ in own}
    claimed = [row for row in rows if row[2] in trusted and row[0] not in computed]
    rivals: dict[bytes, set[bytes]] = {}
    for block, prev, _ in claimed:
        rivals.setdefault(prev, set()).add(block)
    return own + [row for row in claimed if len(rivals[row[1]]) == 1]


def disagreement(found: Iterable[Found], prev: Cid | None, trusted: Iterable[bytes]) -> dict[Cid, bytes]:
    """Give the blocks that trusted signers name upon `prev` and nobody computed here, with a signer of each.

    Empty unless there are two or more: where signers agree, or one is alone, there is nothing to choose.
    """
    words = {signed_domain(signer): signer for signer in trusted}
    here = [each for each in found if each.prev == prev]
    computed = {each.block for each in here if is_own(each.domain)}
    claims = {each.block: words[each.domain] for each in here if each.domain in words and each.block not in computed}
    return claims if len(claims) > 1 else {}
