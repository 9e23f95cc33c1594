"""Rules for the ring of readers among whom a prover hides."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from ...errors import MalformedNode
from ...limits import MAX_RING_KEYS
from ...nodes import Ring
from .group import Group, native_or_plain

RING_SCHEME: Final = "ring-or/secp256k1/1"

MIN_RING_KEYS: Final = 4
"""In a smaller ring a proof would all but name the reader."""


def make_ring(keys: Iterable[bytes], *, group: Group | None = None) -> Ring:
    """Sort the keys of readers, 33 bytes each, into a ring.

    Raises `MalformedNode` for a key that is no point, one that comes twice, and too few or too many. The ring lists
    its readers' keys: it belongs with those who ask and answer, not among what is public.
    """
    ring = Ring(tuple(sorted(keys)))
    check_ring(ring)
    group = group or native_or_plain()
    for at, key in enumerate(ring.keys):
        if not group.is_point(key):
            raise _wrong(f"key {at} is no point of secp256k1")
    return ring


def check_ring(ring: Ring) -> None:
    """Check that a ring hides a reader and has one form. Raises `MalformedNode`.

    Whether its keys are points shows when they are computed with.
    """
    ring.encode()
    if not MIN_RING_KEYS <= len(ring.keys) <= MAX_RING_KEYS:
        raise _wrong(f"{len(ring.keys)} keys, a ring has {MIN_RING_KEYS} to {MAX_RING_KEYS}")
    if not all(low < high for low, high in pairwise(ring.keys)):
        raise _wrong("not in ascending order, or one comes twice")


def _wrong(reason: str) -> MalformedNode:
    return MalformedNode(f"field 'keys': {reason}", field="keys", reason=reason)
