"""Give access to what is sealed: sign a grant, publish it under a new root, and serve earlier epochs no longer."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ..access import Identity, make_grant
from ..access.lineage import Lineage
from ..access.proof import MIN_RING_KEYS, make_ring
from ..chain import closure
from ..cid import Cid
from ..errors import NotFound
from ..index import Index
from ..nodes import Grant, Node, Sealed, decode_node
from ..store.base import Store
from .publish import write_car_file

Keep = Callable[[Lineage, Grant], None]
"""Keeps a lineage and the grant of what it published last. It is called before anybody can get that."""


def not_kept(_lineage: Lineage, _grant: Grant) -> None:
    """Keep nothing: for a lineage that is used once."""


@dataclass(frozen=True)
class Signed:
    """What a grant adds to what is sealed."""

    root: Cid
    grant: Grant
    ring: Cid | None
    nodes: dict[Cid, bytes]
    """The ring if there is one, the grant, and the sealed root."""


def sign_access(
    lineage: Lineage, issuer: Identity, manifest: Cid, pinset: Cid, *, ring: bool, known: Grant | None = None
) -> Signed:
    """Sign a grant for the lineage's readers, and make a sealed root that names it.

    `known` is taken instead if it is the grant of what was published last, and says the same. With `ring`, the issuer
    and the readers are published as a ring, by keys for that purpose only: one of them can then show that it is among
    them and hide which. Raises as `make_grant`, `BadReference` for another issuer than the lineage's, and
    `MalformedNode` for a ring of too few.
    """
    lineage.check_issuer(issuer.public())
    readers = [reader.identity() for reader in lineage.readers]
    made: list[Node] = [make_ring({each.ring for each in (issuer.public(), *readers)})] if ring else []
    ring_cid = made[0].cid() if made else None
    grant, last = known, lineage.last
    if grant is None or not says_the_same(grant, lineage, manifest, ring=ring):
        grant = make_grant(
            issuer, lineage.content_key, readers, lineage=lineage.lineage, epoch=lineage.epoch, root=manifest,
            alg=lineage.alg, prev=None if last is None else last.grant, ring=ring_cid, kem=lineage.kem,
        )  # fmt: skip
    sealed = Sealed(lineage.alg, lineage.lineage, lineage.epoch, grant.commitment, grant.cid(), manifest, pinset)
    nodes = {node.cid(): node.encode() for node in (*made, grant, sealed)}
    return Signed(sealed.cid(), grant, ring_cid, nodes)


def says_the_same(known: Grant, lineage: Lineage, manifest: Cid, *, ring: bool) -> bool:
    """Say whether the grant of what was published last gives the same readers access to the same."""
    last = lineage.last
    return (
        last is not None
        and (last.grant, last.manifest, last.epoch) == (known.cid(), manifest, lineage.epoch)
        and last.audience == lineage.audience(ring=ring)
    )


def grant_access(
    store: Store,
    index: Index,
    lineage: Lineage,
    issuer: Identity,
    *,
    ring: bool = False,
    known: Grant | None = None,
    keep: Keep = not_kept,
    car: Path | None = None,
) -> Lineage:
    """Sign a grant for the lineage's readers over what was published last, and publish both under a new root.

    With `car` they are written to that file instead, which holds nothing else: what they give access to lies in
    another. Costs the same for any size of the conversation. `known` as for `sign_access`. Returns the lineage, which
    is given to `keep` before anything is published. Raises as `sign_access`, `write_car_file`, and `NotFound` for a
    lineage that has published nothing.
    """
    if (last := lineage.last) is None:
        raise NotFound(f"nothing of {lineage.name} is published", hint="publish it first", name=lineage.name)
    signed = sign_access(lineage, issuer, last.manifest, last.pinset, ring=ring, known=known)
    grant = signed.grant
    renewed = lineage.published(replace(
        last, root=signed.root, grant=grant.cid(), ring=signed.ring, audience=lineage.audience(ring=ring)
    ))  # fmt: skip
    if car is not None:

        def root() -> Cid:
            keep(renewed, grant)
            return signed.root

        write_car_file(car, signed.nodes.items(), root)
        return renewed
    store.put_many(signed.nodes.items(), hashed=True)
    keep(renewed, grant)
    known_here = index.is_public(last.manifest) and index.is_public(last.pinset)  # all that is below them then is, too
    index.publish(signed.root, signed.nodes if known_here else closure(store, signed.root))
    return renewed


def withdraw_earlier(store: Store, index: Index, lineage: Lineage) -> None:
    """Serve no longer every root of a lineage that was published in the epochs before, and what only they need.

    Copies that have left stay where they are. Raises as `closure`.
    """
    published = index.published()
    nodes = {root: decode_node(store.get(root)) for root in published}
    old = [
        root for root, node in nodes.items()
        if isinstance(node, Sealed) and node.lineage == lineage.lineage and node.epoch < lineage.epoch
    ]  # fmt: skip
    needed = set(closure(store, *(root for root in published if root not in old)))
    for root in old:
        index.withdraw(root, set(closure(store, root)) - needed)


def keeps_ring(lineage: Lineage) -> bool:
    """Say whether readers were published as a ring before, and are enough for one still."""
    if lineage.last is None or lineage.last.ring is None:
        return False
    keys = {reader.identity().ring for reader in lineage.readers}  # and the issuer's makes one more
    return len(keys) + 1 >= MIN_RING_KEYS
