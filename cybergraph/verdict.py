"""Verdicts: what a lookup of each block of a text answers here, and why.

The question is asked without a model in memory: prefix keys find blocks, blocks name leaves, and the
identities of other models that recorded here tell a text never seen from one recorded under another identity.
What is here is then weighed: a block that loads more slowly than it computes had better be computed.

>>> choose(65_536, 12_500_000, tokens=16, prefill_tokens_s=1000)
Choice(load_s=0.00524288, compute_s=0.016)
>>> choose(65_536, 12_500_000, tokens=16, prefill_tokens_s=1000).verdict.value
'HIT'
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice

from .chain import load_root, misfit
from .cid import Cid
from .errors import BadReference, Corrupt, CyberKVError, NotFound
from .identity import Difference, diff
from .index import Index, disagreement
from .nodes import Block, Model
from .prefix import prefix_keys
from .store.base import Store

_ANY_DOMAIN = ""


class Verdict(StrEnum):
    """Answer to the lookup of one block."""

    HIT = "HIT"
    """The block and all its leaves are here and verified."""
    RECOMPUTE = "RECOMPUTE"
    """Absent, damaged, or cheaper to compute than to load."""
    REFUSE = "REFUSE"
    """Recorded under another model identity, and the reason names the first field that differs; or made elsewhere, and
    nobody vouches for it, or several do and contradict one another."""


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
    """Payload that is here to be loaded."""
    compute_tokens: int = 0
    """Tokens to compute."""
    load_s: float | None = None
    """Estimate of loading it; None where nothing is here or the rate is not known."""
    compute_s: float | None = None
    """Estimate of computing it, whatever the verdict; None where the rate is not known."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Estimates of the two ways to the same tokens, in seconds."""

    load_s: float
    compute_s: float

    @property
    def verdict(self) -> Verdict:
        """The cheaper way. Equal ones are loaded, which leaves the processor free."""
        return Verdict.HIT if self.load_s <= self.compute_s else Verdict.RECOMPUTE

    @property
    def reason(self) -> str:
        """Why computing was chosen, with both estimates."""
        times = f"loading takes {self.load_s / self.compute_s:.3g} times as long as computing"
        return f"{times}: {self.load_s:.3g} s against {self.compute_s:.3g} s"


def choose(load_bytes: int, load_bytes_s: float, *, tokens: int, prefill_tokens_s: float) -> Choice:
    """Weigh loading a payload against computing the tokens it stands for. The rates are positive."""
    return Choice(load_bytes / load_bytes_s, tokens / prefill_tokens_s)


def weigh(
    verdicts: Sequence[BlockVerdict], *, block_size: int, load_bytes_s: float | None, prefill_tokens_s: float | None
) -> list[BlockVerdict]:
    """Add both estimates to each block, and turn the hits into RECOMPUTE if that is cheaper.

    The hits are one run that is loaded or computed as a whole, as a block can only be used on top of those before
    it. A rate that is not known (None) leaves its estimate out and the hits as they are.
    """
    weighed = [
        replace(
            each,
            load_s=each.load_bytes / load_bytes_s if load_bytes_s and each.load_bytes else None,
            compute_s=block_size / prefill_tokens_s if prefill_tokens_s else None,
        )
        for each in verdicts
    ]
    if not load_bytes_s or not prefill_tokens_s:
        return weighed
    hits = [each for each in weighed if each.verdict is Verdict.HIT]
    whole = choose(
        sum(each.load_bytes for each in hits), load_bytes_s,
        tokens=len(hits) * block_size, prefill_tokens_s=prefill_tokens_s,
    )  # fmt: skip
    if whole.verdict is Verdict.HIT:
        return weighed
    return [
        replace(each, verdict=Verdict.RECOMPUTE, reason=whole.reason, compute_tokens=block_size)
        if each.verdict is Verdict.HIT
        else each
        for each in weighed
    ]


@dataclass(frozen=True, slots=True)
class Hits:
    """The leading blocks of a text that are here, whole and verified."""

    blocks: list[tuple[Cid, int]]
    """Each block with the bytes of its leaves."""
    failure: tuple[Cid | None, str] | None = None
    """What is wrong with the next block, if it is known and yet no hit."""

    @property
    def load_bytes(self) -> int:
        """Payload of all of them."""
        return sum(size_bytes for _, size_bytes in self.blocks)


def find_hits(store: Store, index: Index, model: Model, tokens: Sequence[int]) -> Hits:
    """Read and verify the leading blocks of `tokens`, up to the first that is absent or damaged."""
    model_cid, block_size = model.cid(), model.block_size
    leaves = -(-model.num_layers // model.layers_per_leaf)
    found: list[tuple[Cid, int]] = []
    prev: Cid | None = None
    for i, cid in enumerate(index.lookup_chain(prefix_keys(model_cid, tokens, block_size), _ANY_DOMAIN)):
        try:
            block = Block.decode(store.get(cid))
            window = tokens[i * block_size : (i + 1) * block_size]
            if field := misfit(block, model=model_cid, prev=prev, tokens=window, leaves=leaves):
                return Hits(found, (cid, f"the index names a block whose field {field!r} does not fit"))
            found.append((cid, sum(len(store.get(leaf)) for leaf in block.kv)))
        except (NotFound, Corrupt) as error:
            return Hits(found, (_named(error), error.message))
        prev = cid
    return Hits(found)


def explain(store: Store, index: Index, model: Model, tokens: Sequence[int], hits: Hits) -> list[BlockVerdict]:
    """Give a verdict for each full block of `tokens` under the identity `model`.

    `hits` are those of the same text. After the first block that is no hit none is, because a block can only be
    used on top of those before it.
    """
    block_size = model.block_size
    verdicts = [
        BlockVerdict(i, i * block_size, Verdict.HIT, "", cid, load_bytes=load_bytes)
        for i, (cid, load_bytes) in enumerate(hits.blocks)
    ]
    missed = range(len(verdicts), len(tokens) // block_size)
    foreign = _foreign(index, model, tokens, hits) if missed and not hits.failure else None
    rivals = list(_rivals(store, index, model, tokens)) if missed and not hits.failure and not foreign else []
    for i in missed:
        cid, reason = None, f"block {missed.start} before it has to be computed"
        if i == missed.start:
            cid, reason = hits.failure or foreign or (None, "no block is recorded for this model and these tokens")
        verdict, difference = Verdict.REFUSE if foreign and i == missed.start else Verdict.RECOMPUTE, None
        if (rival := next((r for r in rivals if r.tokens >= (i + 1) * block_size), None)) is not None:
            difference, cid = rival.difference, rival.model
            verdict, reason = Verdict.REFUSE, _refusal(rival)
        verdicts.append(BlockVerdict(i, i * block_size, verdict, reason, cid, difference, compute_tokens=block_size))
    return verdicts


def _foreign(index: Index, model: Model, tokens: Sequence[int], hits: Hits) -> tuple[Cid | None, str] | None:
    """Say why the next block is not used although one came from elsewhere; None where none did."""
    at, prev = len(hits.blocks), hits.blocks[-1][0] if hits.blocks else None
    key = next(islice(prefix_keys(model.cid(), tokens, model.block_size), at, None))
    answers = [each for each in index.lookup(key) if each.prev == prev]
    if rivals := disagreement(answers, prev, index.trusted):
        signers = ", ".join(sorted({signer.hex() for signer in rivals.values()}))
        return None, f"trusted signers name {len(rivals)} different blocks, so none of them is used: {signers}"
    return (answers[0].block, "a block was fetched, and nobody signed it whom this home trusts") if answers else None


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
