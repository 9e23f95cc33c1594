"""What a home answers to a text without a model in memory: which blocks are here or at a peer, and why others are not.

Prefix keys find blocks, blocks name leaves, and the identities of other models that recorded here tell a text never
seen from one recorded under another identity.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ..chain import load_root, misfit
from ..cid import Cid
from ..errors import BadReference, Corrupt, CyberKVError, NotFound
from ..identity import Difference, diff
from ..index import Index, disagreement
from ..nodes import Block, Model
from ..prefix import PrefixKey, prefix_keys
from ..store.base import Store
from .kinds import Located, Place, Refusal, Tier, deciding_field

_ANY_DOMAIN = ""
GIVEN_UP = "an edit took this text out, and it was not computed since"

Elsewhere = Callable[[Cid, Sequence[Cid]], int | None]
"""Gives the bytes of leaves of a block if a peer shows to have them all; their names become known to it."""


Examine = Callable[[int, Cid, bytes], None]
"""Looks at a leaf, with its place in the block, that was not computed here. Raises `NotFinite`, `MalformedBytes`."""


def _nowhere(block: Cid, leaves: Sequence[Cid]) -> int | None:  # noqa: ARG001
    return None


def _trusting(group: int, leaf: Cid, data: bytes) -> None:
    pass


def find_here(
    store: Store, index: Index, model: Model, tokens: Sequence[int], elsewhere: Elsewhere = _nowhere,
    examine: Examine = _trusting,
) -> Located:  # fmt: skip
    """Read and verify the leading blocks of `tokens`, up to the first that is absent, damaged or cannot be used.

    A block is in L2 if all its leaves are here, and in L3 if `elsewhere` has those that are not.
    """
    model_cid, block_size = model.cid(), model.block_size
    groups = -(-model.num_layers // model.layers_per_leaf)
    found: list[Place] = []
    prev: Cid | None = None
    for i, cid in enumerate(index.lookup_chain(prefix_keys(model_cid, tokens, block_size), _ANY_DOMAIN)):
        try:
            block = Block.decode(store.get(cid))
            window = tokens[i * block_size : (i + 1) * block_size]
            if field := misfit(block, model=model_cid, prev=prev, tokens=window, leaves=groups):
                return Located(found, (cid, f"the index names a block whose field {field!r} does not fit", None))
            absent = store.missing(block.kv)
            if absent and (there_bytes := elsewhere(cid, absent)) is not None:
                found.append(Place(cid, Tier.L3, there_bytes))
            else:
                leaves = [store.get(leaf) for leaf in block.kv]
                if not index.computed_here([cid]):
                    for group, (leaf, data) in enumerate(zip(block.kv, leaves, strict=True)):
                        examine(group, leaf, data)
                found.append(Place(cid, Tier.L2, sum(map(len, leaves))))
        except (NotFound, Corrupt) as error:
            return Located(found, (_named(error), error.message, deciding_field(error)))
        prev = cid
    return Located(found)


def find_refusals(
    store: Store, index: Index, model: Model, tokens: Sequence[int], located: Located
) -> dict[int, Refusal]:
    """Say for the blocks behind `located` which exist and are not used, by their place in the text.

    Looked at: what `find_unusable` does, and what other identities recorded here.
    """
    first, blocks = len(located.places), len(tokens) // model.block_size
    if first == blocks or located.failure:
        return {}
    keys = islice(prefix_keys(model.cid(), tokens, model.block_size), first, None)
    if unusable := find_unusable(index, keys, first=first, prev=located.places[-1].cid if located.places else None):
        return unusable
    rivals = list(_rivals(store, index, model, tokens))
    found = {}
    for i in range(first, blocks):
        if (rival := next((each for each in rivals if each.tokens >= (i + 1) * model.block_size), None)) is not None:
            found[i] = Refusal(_refusal(rival), rival.model, rival.difference)
    return found


def find_unusable(index: Index, prefixes: Iterable[PrefixKey], *, first: int, prev: Cid | None) -> dict[int, Refusal]:
    """Say which blocks of this model exist and are not used, from block `first` on, by their place in the text.

    `prefixes` are the keys from there on, `prev` is the block before it. Looked at: texts that an edit gave up, and a
    block that came from elsewhere and that nobody vouches for. Stops drawing where there is neither.
    """
    found: dict[int, Refusal] = {}
    for at, prefix in enumerate(prefixes, first):
        if (gone := index.given_up(prefix)) is not None:
            found[at] = Refusal(GIVEN_UP, gone, Difference("given_up", False, True))  # noqa: FBT003
            continue
        if at == first and (foreign := _foreign(index, prefix, prev)) is not None:
            found[at] = foreign
        break
    return found


def _foreign(index: Index, key: PrefixKey, prev: Cid | None) -> Refusal | None:
    """Say why a block is not used although one came from elsewhere; None where none did."""
    answers = [each for each in index.lookup(key) if each.prev == prev]
    if rivals := disagreement(answers, prev, index.trusted):
        signers = ", ".join(sorted({signer.hex() for signer in rivals.values()}))
        reason = f"trusted signers name {len(rivals)} different blocks, so none of them is used: {signers}"
        return Refusal(reason, difference=Difference("blocks", 1, len(rivals)))
    if not answers:
        return None
    reason = "a block was fetched, and nobody signed it whom this home trusts"
    return Refusal(reason, answers[0].block, Difference("signer", "one that is trusted", "none"))


def _named(error: CyberKVError) -> Cid | None:
    text = error.data.get("cid")
    return Cid.parse(text) if isinstance(text, str) else None


@dataclass(frozen=True, slots=True)
class _Rival:
    """Another model under which the text, or its beginning, is recorded."""

    model: Cid
    tokens: int
    difference: Difference


def _rivals(store: Store, index: Index, model: Model, tokens: Sequence[int]) -> Iterator[_Rival]:
    for other in known_models(store, index):
        if differences := diff(model, other):
            keys = prefix_keys(other.cid(), tokens, other.block_size)
            covered = len(index.lookup_chain(keys, _ANY_DOMAIN)) * other.block_size
            if covered:
                yield _Rival(other.cid(), covered, differences[0])


def known_models(store: Store, index: Index) -> list[Model]:
    """List the identities of all conversations that the index names, as far as they can be read."""
    found: dict[Cid, Model] = {}
    for root in index.roots():
        try:
            cid = load_root(store, root).model
            if cid not in found:
                found[cid] = Model.decode(store.get(cid))
        except (NotFound, Corrupt, BadReference):  # the last for a sealed root
            continue
    return list(found.values())


def _refusal(rival: _Rival) -> str:
    field, ours, theirs = rival.difference
    return f"recorded under another model: {field} is {ours!s:.80} here and {theirs!s:.80} there"
