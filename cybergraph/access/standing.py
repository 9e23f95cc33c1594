"""Whether a conversation may be used here: whose word its blocks stand on.

Blocks that were computed here need nobody's word. Others need that of a trusted signer, or that the user accepted the
conversation they came with. Anything may be looked at; this is asked before a model goes on from it.
"""

from collections.abc import Iterable, Sequence
from itertools import islice

from ..chain import block_cids, load_root
from ..cid import Cid
from ..errors import BadReference, Corrupt, NotFound, Untrusted
from ..index import Index, disagreement, is_own, signer_of
from ..limits import MAX_SEGMENT_LINKS
from ..nodes import Conversation, Segment
from ..store.base import Store
from .trust import Origin, TrustFolder

_HINT = "`cyberkv trust add KEY` trusts who signed; `cyberkv fetch {} --trust unsigned` accepts this one conversation"


def origin_of(folder: TrustFolder, index: Index, root: Cid) -> Origin | None:
    """Give what is known of a conversation that came from elsewhere, or None for one that was made here."""
    known = folder.origin(root)
    if known is None and root in index.sources():  # it came before anything of this kind was noted
        return Origin(root, (), (), accepted=False)
    return known


def is_usable(origin: Origin, trusted: frozenset[bytes]) -> bool:
    """Say whether somebody's word stands behind what came from elsewhere."""
    return origin.accepted or not trusted.isdisjoint(origin.signers)


def require_usable(store: Store, index: Index, folder: TrustFolder, cid: Cid) -> None:
    """Refuse to go on from what nobody vouches for. Reads the page table alone.

    A block names the one before it, so whoever vouches for one vouches for all before it: of the blocks that came from
    elsewhere, the last one decides. Raises `Untrusted`, naming the signers; `BlockNotFound`, `BadReference`, `Corrupt`.
    """
    trusted, root = folder.trusted(), load_root(store, cid)
    origin = origin_of(folder, index, cid)
    vouched = origin is not None and is_usable(origin, trusted)
    if origin is not None and not vouched and root.tail.kv:  # rows that no block has
        raise _untrusted(cid, origin.signers)
    blocks = list(block_cids(store, root))
    last = _last_foreign(index, blocks, trusted)
    if vouched or last is None:
        return
    holding = [each for each in _origins(folder, index) if _holds(store, each.root, root, last, blocks[last])]
    if holding and not any(is_usable(each, trusted) for each in holding):
        came = next((each.root for each in holding if each.root != cid), cid)
        raise _untrusted(cid, [signer for each in holding for signer in each.signers], came)


def carry_origin(folder: TrustFolder, index: Index, root: Cid, part: Cid) -> None:
    """Note of a conversation that was made of the blocks of another that it came from where that came from.

    Else nobody could tell any more once the other is gone. It has no rows of its own, so that a word for any
    conversation with the same blocks is good for it as well. Raises `Corrupt`.
    """
    if part != root and (origin := origin_of(folder, index, root)) is not None:
        folder.note(part, signers=origin.signers, accepted=origin.accepted)


def _last_foreign(index: Index, blocks: Sequence[Cid], trusted: frozenset[bytes]) -> int | None:
    """Find the last block that neither was computed here nor is signed by somebody trusted. Raises `Untrusted`."""
    last, prev = None, None
    for at, block in enumerate(blocks):
        answers = index.beside(block)
        owners = [each.domain for each in answers if each.block == block]
        if not any(map(is_own, owners)):
            if block in (rivals := disagreement(answers, prev, trusted)):
                raise _contradicted(block, rivals)
            if trusted.isdisjoint(filter(None, map(signer_of, owners))):
                last = at
        prev = block
    return last


def _origins(folder: TrustFolder, index: Index) -> Iterable[Origin]:
    known = {origin.root: origin for origin in folder.origins()}
    yield from known.values()
    yield from (Origin(root, (), (), accepted=False) for root in index.sources() if root not in known)


def _holds(store: Store, other: Cid, root: Conversation, at: int, block: Cid) -> bool:
    """Say whether another conversation has a block at the same place, and so everything before it."""
    page, link = divmod(at, MAX_SEGMENT_LINKS)
    try:
        segments = load_root(store, other).segments
        if page < len(root.segments) and segments[page : page + 1] == root.segments[page : page + 1]:
            return True
        links = [link for cid in islice(segments, page, page + 1) for link in Segment.decode(store.get(cid)).links]
        return link < len(links) and links[link].to == block
    except (NotFound, Corrupt, BadReference):  # it has not come whole: nothing that is here has it from there
        return False


def _untrusted(cid: Cid, signers: Iterable[bytes], came: Cid | None = None) -> Untrusted:
    keys = sorted({signer.hex() for signer in signers})
    by = f"it is signed by {', '.join(keys)}, whom this home does not trust" if keys else "nobody signed it"
    return Untrusted(
        f"{cid} came from elsewhere and {by}: wrong keys and values would give wrong answers",
        hint=_HINT.format(came or cid), cid=str(cid), signers=keys,
    )  # fmt: skip


def _contradicted(block: Cid, rivals: dict[Cid, bytes]) -> Untrusted:
    keys = sorted({signer.hex() for signer in rivals.values()})
    return Untrusted(
        f"trusted signers name {len(rivals)} different blocks for the same tokens, so none of them is used: {block}",
        hint="compute the text here with `cyberkv prefill`, or `cyberkv trust remove` one of them",
        cid=str(block), signers=keys, blocks=sorted(map(str, rivals)),
    )  # fmt: skip
