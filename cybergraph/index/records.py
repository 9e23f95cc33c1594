"""What the index holds, and the bytes it is held as."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from ..cid import CID_BYTES, Cid
from ..errors import Corrupt, LimitExceeded
from ..prefix import KeyedPrefix, PrefixKey

UNKNOWN_DOMAIN: Final = "unknown"
"""Domain of a block whose maker is not known, such as one found by a rebuild."""
MAX_DOMAIN_BYTES: Final = 128
GIVEN_UP: Final = b"given-up "
RECEIPT: Final = b"receipt "
NOTES: Final = (GIVEN_UP, RECEIPT)
"""Begin the keys of notes in the table `meta`, which an index of any version has. Each is about one CID, its value."""
NO_PREV: Final = bytes(CID_BYTES)
"""Stands for the block before the first one. No CID is all zeros."""


class IndexEntry(NamedTuple):
    """One block as it is added."""

    prefix: PrefixKey
    block: Cid
    prev: Cid | None
    model: Cid
    domain: str
    """Numeric domain that computed the bytes."""


class Filed(NamedTuple):
    """One block as the index holds it: its prefix key cannot be had back."""

    key: KeyedPrefix
    block: Cid
    prev: Cid | None
    model: Cid
    domain: str


class Found(NamedTuple):
    """One answer to a prefix key."""

    block: Cid
    domain: str
    prev: Cid | None
    """The block it continues; a chain must be followed along it."""


class Divergence(NamedTuple):
    """Equal inputs that gave different bytes in one domain: the canonical rule was broken there."""

    key: KeyedPrefix
    domain: str
    prev: Cid | None
    blocks: tuple[Cid, ...]
    """Two or more, in the order they were added."""


def text_of(data: bytes) -> str:
    """Read a text of the index. What is no UTF-8 is damage, which must not keep the rest from being read."""
    return data.decode(errors="replace")


def encode_domain(domain: str) -> bytes:
    """Encode a domain name. Raises `LimitExceeded`."""
    data = domain.encode()
    if len(data) > MAX_DOMAIN_BYTES:
        raise LimitExceeded(f"domain name of {len(data)} bytes, limit {MAX_DOMAIN_BYTES}", size_bytes=len(data))
    return data


def pack_found(block: bytes, prev: bytes, domain: bytes) -> bytes:
    """Lay out one answer: block, prev or zeros, length of the domain, domain."""
    return block + prev + bytes((len(domain),)) + domain


def unpack_found(row: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Read the answers packed one after the other: (block, prev or zeros, domain). Raises `Corrupt`."""
    at, size = 0, len(row)
    while at < size:
        domain_at = at + 2 * CID_BYTES + 1
        end = domain_at + row[domain_at - 1] if domain_at <= size else domain_at
        if end > size:
            raise Corrupt("a row of the index is damaged", hint="run `cyberkv index rebuild`", table="found")
        yield row[at : at + CID_BYTES], row[at + CID_BYTES : domain_at - 1], row[domain_at:end]
        at = end


def pack_prev(prev: Cid | None) -> bytes:
    """Lay out a `prev` in fixed size."""
    return NO_PREV if prev is None else prev


def unpack_prev(data: bytes) -> Cid | None:
    """Read what `pack_prev` wrote."""
    return None if data == NO_PREV else Cid(data)


def unpack_cids(row: bytes) -> tuple[Cid, ...]:
    """Read CIDs packed one after the other."""
    return tuple(Cid(row[at : at + CID_BYTES]) for at in range(0, len(row), CID_BYTES))
