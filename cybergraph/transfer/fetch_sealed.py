"""Fetch a conversation that was published for some.

It is opened on its way, so that what arrives is the conversation by the names it has at home.
"""

from collections.abc import Callable, Sequence

from ..access import ContentKey, OpenedTable, SealedPeer, check_grant_of, commits
from ..cid import Cid
from ..errors import AuthFailed, ProofRejected
from ..index import Index
from ..nodes import Grant, Ring, Sealed
from ..peers.base import Peer, Prover
from ..store.base import Store
from .fetch import FetchReport, fetch, nothing
from .head import Begin
from .progress import SILENT, Progress
from .single import bring, bring_node


def fetch_sealed(
    store: Store,
    index: Index,
    root: Cid,
    peers: Sequence[Peer],
    unlock: Callable[[Sealed, Grant], ContentKey],
    *,
    prove: Callable[[Grant, ContentKey], Prover] | None = None,
    progress: Progress = SILENT,
    most_bytes: int | None = None,
    free_bytes: int | None = None,
    begin: Begin = nothing,
    attribute: bool = True,
) -> FetchReport:
    """Fetch a sealed conversation and store it open. Who signed its grant counts as its signer if they `attribute`.

    `unlock` gives the content key, or raises; `prove` says who answers peers that ask for a proof of access; `begin` as
    in `fetch`. The report's root is the conversation's own. Raises as `fetch`, and `AuthFailed` where grant, root and
    key do not belong together.
    """
    sealed, grant = find_grant(root, peers)
    key = unlock(sealed, grant)
    if not commits(grant, key):
        raise AuthFailed("this key is not that of the conversation", cid=str(root))
    if prove is not None:
        prover = prove(grant, key)
        for peer in peers:
            peer.prove_with(prover)
    table = OpenedTable(sealed, key, bring(sealed.manifest, peers))
    through = [SealedPeer(peer, table) for peer in peers]
    return fetch(
        store, index, table.root, through, progress=progress, most_bytes=most_bytes, free_bytes=free_bytes,
        signer=grant.issuer if attribute else None, begin=begin,
    )  # fmt: skip


def find_grant(root: Cid, peers: Sequence[Peer]) -> tuple[Sealed, Grant]:
    """Bring a sealed root and its grant, and check that they belong together. Raises as `check_grant_of`."""
    sealed = bring_node(root, peers, Sealed)
    grant = bring_node(sealed.grant, peers, Grant)
    check_grant_of(sealed, grant)
    return sealed, grant


def find_ring(grant: Grant, peers: Sequence[Peer]) -> Ring:
    """Bring the ring of a grant. Raises `ProofRejected` for a grant without one."""
    if grant.ring is None:
        raise ProofRejected(
            "this grant names no ring to hide in",
            hint="without --proof ring, a proof does not tell readers apart either", reason="no-ring",
        )  # fmt: skip
    return bring_node(grant.ring, peers, Ring)
