"""Whether a conversation may be used here: whose word its blocks stand on.

Blocks that were computed here need nobody's word. Others need that of a trusted signer, or that the user accepted the
conversation they came with. Anything may be looked at; this is asked before a model goes on from it.

What came from elsewhere is known in two ways: by the notes of the trust folder, which name conversations, and by the
index, which names the signer of a block. The notes count also where the index was lost and made anew, and knows nothing
of who computed what: what no note covers is one's own then.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile

from ..chain import block_cids, load_root
from ..cid import Cid
from ..errors import BadReference, Corrupt, NotFound, Untrusted
from ..index import Index, disagreement, is_own, signer_of
from ..limits import MAX_SEGMENT_LINKS
from ..nodes import Conversation, Segment
from ..store.base import Store
from .trust import Ground, Origin, TrustFolder

_HINT = "`cyberkv trust add KEY` trusts who signed; `cyberkv fetch {} --trust unsigned` accepts this one conversation"


@dataclass(frozen=True, slots=True)
class Claim:
    """How far a conversation is the same as one that came from elsewhere."""

    origin: Origin
    tokens: int
    """From the beginning on."""
    rows: bool
    """Whether the rows of its tail came from there, too."""


def is_usable(origin: Origin, trusted: frozenset[bytes]) -> bool:
    """Say whether somebody's word stands behind what came from elsewhere."""
    return origin.accepted or not trusted.isdisjoint(origin.signers)


def require_usable(store: Store, index: Index, folder: TrustFolder, cid: Cid) -> None:
    """Refuse to go on from what nobody vouches for. Reads the page table alone.

    A block names the one before it, so whoever vouches for one vouches for all before it. Refused is a block that lies
    beyond all that is vouched for, and came with some conversation, or is signed by somebody. Raises `Untrusted`,
    naming the signers; `BlockNotFound`, `BadReference`, `Corrupt`.
    """
    trusted, root, origins = folder.trusted(), load_root(store, cid), _origins(folder, index)
    rows = [each for each in _own_claims(folder, origins, cid, root) if each.rows]
    if root.tail.kv and rows and not any(is_usable(each.origin, trusted) for each in rows):  # rows that no block has
        raise _untrusted(cid, rows)
    open_blocks: list[tuple[int, set[bytes]]] = []
    prev: Cid | None = None
    for at, block in enumerate(block_cids(store, root)):
        answers = index.beside(block)
        owners = [each.domain for each in answers if each.block == block]
        if not any(map(is_own, owners)):
            if block in (rivals := disagreement(answers, prev, trusted)):
                raise _contradicted(block, rivals)
            signers = {signer for signer in map(signer_of, owners) if signer is not None}
            if trusted.isdisjoint(signers):
                open_blocks.append((at * root.block_size, signers))
        prev = block
    if not open_blocks:
        return
    claims = list(claims_on(store, index, folder, cid, root))
    good_tokens = max((each.tokens for each in claims if is_usable(each.origin, trusted)), default=0)
    left = [(start, signers) for start, signers in open_blocks if start + root.block_size > good_tokens]
    signed = {signer for _, signers in left for signer in signers}
    bad = [each for each in claims if not is_usable(each.origin, trusted) and left and each.tokens > left[0][0]]
    if bad or signed:
        raise _untrusted(cid, bad, signed)


def claims_on(store: Store, index: Index, folder: TrustFolder, cid: Cid, root: Conversation) -> Iterator[Claim]:
    """List what of a conversation came from elsewhere, as far as the notes tell. Raises `Corrupt`."""
    origins = _origins(folder, index)
    yield from _own_claims(folder, origins, cid, root)
    for origin in origins.values():
        if origin.root != cid and (tokens := _shared_tokens(store, origin.root, root)):
            yield Claim(origin, tokens, rows=False)
    for ground in folder.grounds():
        if ground.root != cid and (tokens := min(ground.tokens, _shared_tokens(store, ground.root, root))):
            yield Claim(_of(origins, ground.on), tokens, rows=False)


def _own_claims(folder: TrustFolder, origins: Mapping[Cid, Origin], cid: Cid, root: Conversation) -> Iterator[Claim]:
    """List what is noted of a conversation itself."""
    if cid in origins:
        yield Claim(origins[cid], root.length, rows=True)
    for ground in folder.grounds():
        if ground.root == cid:
            yield Claim(_of(origins, ground.on), ground.tokens, ground.rows)


def _of(origins: Mapping[Cid, Origin], root: Cid) -> Origin:
    return origins.get(root) or Origin(root, (), (), accepted=False)


def carry_origin(store: Store, index: Index, folder: TrustFolder, root: Cid, part: Cid) -> None:
    """Note of a conversation that was made of another, of its tokens from the first on, what that one stands on.

    Else nobody could tell any more once the other is gone, or where the new one has the same rows in other blocks.
    Raises `BlockNotFound`, `BadReference`, `Corrupt`.
    """
    made = load_root(store, part)
    tail_start = made.length - len(made.tail.tokens)
    for claim in list(claims_on(store, index, folder, root, load_root(store, root))):
        if claim.origin.root != part:
            rows = bool(made.tail.kv) and (claim.rows or tail_start < claim.tokens)
            folder.stand(Ground(part, claim.origin.root, min(claim.tokens, made.length), rows))


def keep_grounds(
    store: Store, index: Index, folder: TrustFolder, leaving: Collection[Cid], staying: Iterable[Cid]
) -> None:
    """Note what conversations that stay stand on, before what shows it is deleted.

    Takes a look at all that stay, but only if something leaves that tells where blocks came from. Raises `Corrupt`.
    """
    if any(each in leaving for each in (*_origins(folder, index), *(ground.root for ground in folder.grounds()))):
        for root in staying:
            with suppress(NotFound, Corrupt, BadReference):  # sealed, a receipt, or not here
                carry_origin(store, index, folder, root, root)


def _origins(folder: TrustFolder, index: Index) -> dict[Cid, Origin]:
    """Give all that came from elsewhere; of what came before anything of this kind was noted, nobody is known."""
    unsigned = {root: Origin(root, (), (), accepted=False) for root in index.sources()}
    return unsigned | {origin.root: origin for origin in folder.origins()}


def _shared_tokens(store: Store, other: Cid, root: Conversation) -> int:
    """Count the tokens of the blocks that another conversation has from its beginning on as well."""
    try:
        theirs = load_root(store, other)
        pages = list(_common(theirs.segments, root.segments))
        blocks = len(pages) * MAX_SEGMENT_LINKS
        at = len(pages)
        if at < min(len(theirs.segments), len(root.segments)):
            here, there = (
                [link.to for link in Segment.decode(store.get(each.segments[at])).links] for each in (root, theirs)
            )
            blocks += len(list(_common(here, there)))
    except (NotFound, Corrupt, BadReference):  # it has not come whole: nothing that is here has it from there
        return 0
    whole = root.length - len(root.tail.tokens)
    return min(blocks * root.block_size, whole)


def _common(some: Sequence[Cid], others: Sequence[Cid]) -> Iterator[Cid]:
    return (one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(some, others, strict=False)))


def _untrusted(cid: Cid, claims: Iterable[Claim], also: Iterable[bytes] = ()) -> Untrusted:
    origins = [each.origin for each in claims]
    keys = sorted({signer.hex() for each in origins for signer in each.signers} | {signer.hex() for signer in also})
    came = next((each.root for each in origins if each.root == cid), origins[0].root if origins else cid)
    by = f"it is signed by {', '.join(keys)}, whom this home does not trust" if keys else "nobody signed it"
    return Untrusted(
        f"{cid} came from elsewhere and {by}: wrong keys and values would give wrong answers",
        hint=_HINT.format(came), cid=str(cid), signers=keys,
    )  # fmt: skip


def _contradicted(block: Cid, rivals: dict[Cid, bytes]) -> Untrusted:
    keys = sorted({signer.hex() for signer in rivals.values()})
    return Untrusted(
        f"trusted signers name {len(rivals)} different blocks for the same tokens, so none of them is used: {block}",
        hint="compute the text here with `cyberkv prefill`, or `cyberkv trust remove` one of them",
        cid=str(block), signers=keys, blocks=sorted(map(str, rivals)),
    )  # fmt: skip
