"""One sealed conversation that is published: what belongs to it, and how access to it is proven."""

from dataclasses import dataclass

from ..access.proof import Terms
from ..cid import Cid
from ..errors import Corrupt, CyberKVError, Refused
from ..foreign import AnyCid
from ..nodes import Grant, PinSet, Ring, Sealed
from .content import Content


@dataclass(frozen=True)
class SealedRoot:
    """One sealed conversation that is published."""

    cid: Cid
    terms: Terms | None
    """What a proof of access is about; None where the grant, or its ring, is not here or not sound."""
    apart: tuple[Cid, ...]
    """What stands open beside the root: the grant and its ring."""
    named: tuple[Cid, Cid]
    """Sealed blocks that the root names, so that everybody knows of them."""
    below: frozenset[AnyCid]
    """All sealed blocks, as far as the pin sets are here."""
    owner: bytes | None
    """Who signed the grant, and the lineage; None without `terms`."""
    lacking: Cid | None
    """A grant, ring or pin set that could not be read."""


def read_sealed_root(content: Content, root: AnyCid) -> SealedRoot | None:
    """Read a root, its grant and its pin sets. None for another kind of root. Raises as `Content.get` does for it."""
    if not isinstance(root, Cid) or root.codec != "dag-cbor":
        return None
    data = content.get(root)
    try:
        sealed = Sealed.decode(data)
    except (Corrupt, Refused):
        return None
    named = (sealed.manifest, sealed.pinset)
    below, lacking = _pinned(content, sealed.pinset)
    apart = [sealed.grant]
    terms = owner = None
    try:
        grant = Grant.decode(content.get(sealed.grant))
        if grant.ring is not None:
            apart.append(grant.ring)
        ring = None if grant.ring is None else Ring.decode(content.get(grant.ring))
        if grant.root == sealed.manifest:
            terms, owner = Terms.of(grant, ring=ring), grant.issuer + grant.lineage
    except CyberKVError:
        lacking = apart[-1]
    return SealedRoot(root, terms, tuple(apart), named, frozenset({*named, *below}), owner, lacking)


def _pinned(content: Content, pinset: Cid) -> tuple[set[Cid], Cid | None]:
    """List what a pin set links to and what the pin sets among that do, and the last that could not be read."""
    below: set[Cid] = set()
    lacking = None
    ahead = [pinset]
    for _ in range(2):
        inner: list[Cid] = []
        for pins in ahead:
            try:
                found = PinSet.decode(content.get(pins)).links
            except CyberKVError:
                lacking = pins
                continue
            below.update(found)
            inner += [cid for cid in found if cid.codec == "dag-cbor"]
        ahead = inner
    return below, lacking
