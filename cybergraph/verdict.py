"""Verdicts: what a lookup of each block of a text answers here, and why.

The question is asked without a model in memory: prefix keys find blocks, blocks name leaves, and the
identities of other models that recorded here tell a text never seen from one recorded under another identity.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from .chain import load_root, misfit
from .cid import Cid
from .errors import Corrupt, CyberKVError, NotFound
from .identity import Difference, diff
from .index import Index
from .nodes import Block, Model
from .prefix import prefix_keys
from .store.base import Store

_ANY_DOMAIN = ""


class Verdict(StrEnum):
    """Answer to the lookup of one block."""

    HIT = "HIT"
    """The block and all its leaves are here and verified."""
    FAULT = "FAULT"
    """Known, but it has to be loaded from a lower tier."""
    RECOMPUTE = "RECOMPUTE"
    """Absent, damaged, or cheaper to compute than to fetch."""
    REFUSE = "REFUSE"
    """Recorded under another model identity; the reason names the first field that differs."""
    ABSTAIN = "ABSTAIN"
    """The budget was spent before the block was looked for."""
    RECONCILED = "RECONCILED"
    """Approximate, with its measured error."""


@dataclass(frozen=True, slots=True)
class BlockVerdict:
    """What happens to one block of a text, with what it costs."""

    index: int
    position_start: int
    verdict: Verdict
    reason: str
    """Empty for a hit."""
    cid: Cid | None = None
    """The block, or the node or leaf that is missing or damaged."""
    difference: Difference | None = None
    """For a refusal: the first field that differs, its value here (`a`) and there (`b`)."""
    load_bytes: int = 0
    """Payload to read instead of computing."""
    compute_tokens: int = 0
    """Tokens to compute."""


def explain(store: Store, index: Index, model: Model, tokens: Sequence[int]) -> list[BlockVerdict]:
    """Give a verdict for each full block of `tokens` under the identity `model`.

    Reads and verifies every leaf of what it calls a hit. After the first block that is no hit none is,
    because a block can only be used on top of those before it.
    """
    size = model.block_size
    hits, failure = _hits(store, index, model, tokens)
    verdicts = [
        BlockVerdict(i, i * size, Verdict.HIT, "", cid, load_bytes=load_bytes)
        for i, (cid, load_bytes) in enumerate(hits)
    ]
    rivals = [] if failure else list(_rivals(store, index, model, tokens))
    for i in range(len(hits), len(tokens) // size):
        first = i == len(hits)
        cid, reason = None, f"block {len(hits)} before it has to be computed"
        if first:
            cid, reason = failure or (None, "no block is recorded for this model and these tokens")
        verdict, difference = Verdict.RECOMPUTE, None
        if (rival := next((r for r in rivals if r.tokens >= (i + 1) * size), None)) is not None:
            difference, cid = rival.difference, rival.model
            verdict, reason = Verdict.REFUSE, _refusal(rival)
        verdicts.append(BlockVerdict(i, i * size, verdict, reason, cid, difference, compute_tokens=size))
    return verdicts


def _hits(
    store: Store, index: Index, model: Model, tokens: Sequence[int]
) -> tuple[list[tuple[Cid, int]], tuple[Cid | None, str] | None]:
    """List the leading whole blocks with the bytes of their leaves, and what is wrong with the next one."""
    model_cid, size = model.cid(), model.block_size
    leaves = -(-model.num_layers // model.layers_per_leaf)
    found: list[tuple[Cid, int]] = []
    prev: Cid | None = None
    for i, cid in enumerate(index.lookup_chain(prefix_keys(model_cid, tokens, size), _ANY_DOMAIN)):
        try:
            block = Block.decode(store.get(cid))
            window = tokens[i * size : (i + 1) * size]
            if field := misfit(block, model=model_cid, prev=prev, tokens=window, leaves=leaves):
                return found, (cid, f"the index names a block whose field {field!r} does not fit")
            found.append((cid, sum(len(store.get(leaf)) for leaf in block.kv)))
        except (NotFound, Corrupt) as error:
            return found, (_named(error), error.message)
        prev = cid
    return found, None


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
        except (NotFound, Corrupt):
            continue
    return list(found.values())


def _refusal(rival: _Rival) -> str:
    field, ours, theirs = rival.difference
    return f"recorded under another model: {field} is {ours!s:.80} here and {theirs!s:.80} there"
