"""What each tier takes to give a block of this home, measured now."""

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ..cybergraph.chain import block_cids, load_root
from ..cybergraph.cid import Cid
from ..cybergraph.errors import CyberKVError
from ..cybergraph.index import UNKNOWN_DOMAIN
from .context import Session
from .kubo import open_source

if TYPE_CHECKING:
    from ..runtime.models.registry import LoadedModel

_MOST_BLOCKS: Final = 64
_OF_EACH: Final = 4


def tier_speeds(session: Session, loaded: "LoadedModel", source: str | None) -> list[dict[str, Any]]:
    """Time one block from each tier that has one; none where this home has no block of the model.

    A `source` is asked for blocks that are public or came from elsewhere, and for no others. Raises as `open_source`.
    """
    from ..runtime.pool import Pool
    from ..runtime.tiers import Residency
    from ..runtime.tiers.measure import measure

    index = session.index

    def may_ask(block: Cid) -> bool:
        return index.is_public(block) or index.domain_of(block) == UNKNOWN_DOMAIN

    sources = [] if source is None else [open_source(source)]
    try:
        residency = Residency(
            Pool(loaded.geometry, 2), session.store, loaded.cid, sources=sources, may_ask=may_ask
        )  # fmt: skip
        found = measure(residency, _blocks(session, loaded.cid), session.clock_s)
    finally:
        for peer in sources:
            peer.close()
    return [
        {"tier": str(each.tier), "model": loaded.record.name, "bytes": each.size_bytes, "latency_s": each.latency_s,
         "bytes_s": each.bytes_s}
        for each in found
    ]  # fmt: skip


def _blocks(session: Session, model: Cid) -> list[Cid]:
    """List a few blocks of a model from each of some conversations, published and fetched ones first."""
    index, blocks = session.index, list[Cid]()
    sources = index.sources()
    heads = sorted(index.heads(), key=lambda head: not (head.root in sources or index.is_public(head.root)))
    for head in heads:
        try:
            root = load_root(session.store, head.root)
            if root.model == model:
                blocks += islice(block_cids(session.store, root), _OF_EACH)
        except CyberKVError:  # locked, or damaged: `fsck` says which
            continue
        if len(blocks) >= _MOST_BLOCKS:
            break
    return blocks
