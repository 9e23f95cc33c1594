"""Reuse: what a conversation takes from blocks that exist, by plan, and what it says about it.

A plan has a verdict for each full block of the next tokens (`cybergraph.verdict.plan`). It is done as it stands; only
the speed of loading is not known before something was loaded, so after the first blocks of a long run the rest is
planned again. What was done is kept, verdict by verdict, and the counters follow from it.
"""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field, replace

from torch import Tensor

from ..cybergraph.cid import Cid
from ..cybergraph.identity import Difference
from ..cybergraph.nodes import Block
from ..cybergraph.prefix import PrefixKey, prefix_key
from ..cybergraph.verdict import (
    Approximation,
    BlockVerdict,
    Located,
    Rates,
    Refusal,
    Tier,
    Verdict,
    find_unusable,
    measured_error,
    plan,
)
from .adopt import adopt_blocks
from .engine import Engine
from .rows import ARCHIVED
from .sealing import Sealed
from .sequence import Sequence
from .tiers import Miss


@dataclass(slots=True)
class Counts:
    """What the operations on one conversation cost so far."""

    tokens_reused: int = 0
    """Tokens whose K and V were there already, or were loaded, instead of computed."""
    tokens_computed: int = 0
    """Tokens that went through the model: new ones, and a tail computed again on resume; the repeat of a swap not."""
    blocks_new: int = 0
    """Blocks sealed here that the store did not have."""
    tokens_drafted: int = 0
    """Guesses that were checked (`steps.speculation`)."""
    tokens_accepted: int = 0
    """Guesses that were right and became tokens: steps that were saved."""
    misses: list[Miss] = field(default_factory=list)
    """Why reuse ended, where it could have gone on."""
    executed: list[BlockVerdict] = field(default_factory=list)
    """What was done with each full block that was asked for: reused ones when their rows were in place, computed ones
    when they were stored. Blocks that decoding filled are not asked for."""


class Reusing:
    """The part of a live conversation that takes blocks which exist."""

    engine: Engine
    approx: str | None
    tokens: list[int]
    blocks: list[Cid]
    counts: Counts
    sequence: Sequence
    _keys: list[PrefixKey]
    _hidden: Tensor | None

    @property
    def boundary(self) -> int:
        """Position of the first token after the last full block."""
        return len(self.blocks) * self.engine.geometry.block_size

    def plan(
        self, pending: Tokens[int], *, budget_bytes: int | None = None, rates: Rates | None = None
    ) -> list[BlockVerdict]:
        """Decide about each full block of the tokens that follow the last full block. Nothing moves.

        At most `budget_bytes` are to be loaded; without `rates`, the speed of loading is not known.
        """
        engine, size = self.engine, self.engine.geometry.block_size
        keys, first, last = self.prefixes_of(pending), len(self.blocks), self.blocks[-1] if self.blocks else None
        known = engine.index.lookup_chain(keys, engine.domain.name, after=last)
        before, at = known[-1] if known else last, first + len(known)
        refusals: dict[int, Refusal] = {}
        if not self.approx:  # of what is approximate no text was filed, and none could be given up
            refusals = find_unusable(engine.index, keys[len(known) :], first=at, prev=before)
        return plan(
            engine.residency.locate(known), blocks=len(keys), block_size=size,
            rates=rates or engine.pace.rates(), first_block=first, budget_bytes=budget_bytes,
            refusals=refusals,
        )  # fmt: skip

    def plan_recorded(self, blocks: Tokens[Cid]) -> list[BlockVerdict]:
        """Decide about the blocks of a root, which come next. Nothing moves.

        A root names its bytes, and computing might give others: so all that is there is loaded, however slowly. Of an
        approximate conversation, what the index does not have is RECONCILED.
        """
        engine, size, first = self.engine, self.engine.geometry.block_size, len(self.blocks)
        located = engine.residency.locate(blocks)
        exact = self.exact_blocks(blocks)
        near = {
            first + i: Approximation(
                each.cid, measured_error(self.approx), self.approx, each.load_bytes, each.tier
            )
            for i, each in enumerate(located.places[exact:], exact)
            if self.approx
        }  # fmt: skip
        if near:
            located = Located(located.places[:exact])
        return plan(
            located, blocks=len(blocks), block_size=size, rates=Rates(), first_block=first, approximations=near
        )  # fmt: skip

    def exact_blocks(self, blocks: Tokens[Cid]) -> int:
        """Count the leading blocks that are exact, as far as is known: what is approximate is never indexed."""
        if not self.approx:
            return len(blocks)
        index = self.engine.index
        return next((i for i, cid in enumerate(blocks) if index.domain_of(cid) is None), len(blocks))

    def take_recorded(self, blocks: Tokens[Cid], tokens: Tokens[int], *, later: bool = False) -> None:
        """Take the blocks of a root, by plan, as far as they verify and bind to `tokens`.

        `later` as for `adopt_blocks`.
        """
        self._take(_leading(self.plan_recorded(blocks)), tokens, later=later)

    def prefixes_of(self, pending: Tokens[int]) -> list[PrefixKey]:
        """Give the prefix keys of the full blocks of tokens that follow the last full block."""
        size, keys, parent = self.engine.geometry.block_size, list[PrefixKey](), self._keys[-1] if self._keys else None
        for start in range(0, len(pending) - size + 1, size):
            parent = prefix_key(self.engine.model_cid, parent, pending[start : start + size])
            keys.append(parent)
        return keys

    def _reuse(
        self, pending: Tokens[int], budget_bytes: int | None = None, *, later: bool = False
    ) -> list[BlockVerdict]:  # fmt: skip
        """Take what the plan for the next tokens says. Returns the verdicts of the blocks that are to be computed.

        With `later`, and where something is to be computed, the last that are loaded may still be on their way then.
        """
        pace, geometry = self.engine.pace, self.engine.geometry
        start, planned = len(self.blocks), self.plan(pending, budget_bytes=budget_bytes)
        loads = _leading(planned)
        later = later and len(loads) * geometry.block_size < len(pending)
        hits = next((i for i, each in enumerate(loads) if each.verdict is not Verdict.HIT), len(loads))
        first, started_s = hits + pace.first_blocks(len(loads) - hits, geometry.block_bytes), pace.clock_s()
        loaded_bytes = self._take(loads[:first], pending, later=later and first == len(loads))
        done = len(self.blocks) - start
        if done == first < len(loads):
            rates = pace.rates(loaded_bytes=loaded_bytes, loaded_s=pace.clock_s() - started_s)
            rest, left = pending[first * geometry.block_size :], budget_bytes
            planned = self.plan(rest, budget_bytes=left if left is None else left - loaded_bytes, rates=rates)
            loads = _leading(planned)
            self._take(loads, rest, later=later)
            done = len(self.blocks) - start - first
        return self._settle(planned, done, failed=done < len(loads))

    def _take(self, loads: Tokens[BlockVerdict], pending: Tokens[int], *, later: bool = False) -> int:
        """Take planned blocks. Returns the bytes that were moved for it, or with `later` may be moved yet."""
        cids, known = [each.cid for each in loads if each.cid is not None], len(self.counts.executed)
        self.adopt(cids, pending, later=later)
        return sum(each.load_bytes for each in self.counts.executed[known:])

    def _settle(self, planned: list[BlockVerdict], done: int, *, failed: bool) -> list[BlockVerdict]:
        """Say what becomes of the planned blocks behind those that were taken, and note why reuse ended."""
        rest = planned[done:]
        if failed:
            size, [first, *others] = self.engine.geometry.block_size, rest
            reason = f"block {first.index} before it has to be computed"
            miss = self.counts.misses[-1]
            rest = [
                replace(each, verdict=Verdict.RECOMPUTE, reason=why, compute_tokens=size, difference=field)
                for each, why, field in [
                    (first, miss.reason, miss.difference),
                    *((each, reason, None) for each in others),
                ]
            ]
        elif rest and (known := self._missed(self.boundary)):  # what a root named, and was not there
            cid = None if known.cid is None else Cid.parse(known.cid)
            rest[0] = replace(rest[0], reason=known.reason, cid=cid, difference=known.difference)
        elif rest and rest[0].cid is not None:  # one that could have been had
            self._miss(Miss(self.boundary, rest[0].reason, str(rest[0].cid)))
        return rest

    def _missed(self, position: int) -> Miss | None:
        return next((known for known in self.counts.misses if known.position_start == position), None)

    def _miss(self, miss: Miss) -> None:
        """Keep why reuse ended, once for each place."""
        if self._missed(miss.position_start) is None:
            self.counts.misses.append(miss)

    def adopt(self, blocks: Tokens[Cid], tokens: Tokens[int], *, later: bool = False) -> None:
        """Take leading blocks that verify and bind to `tokens`; the first failure is kept as a miss.

        `later` as for `adopt_blocks`.
        """
        engine, size = self.engine, self.engine.geometry.block_size
        prev, first = self.blocks[-1] if self.blocks else None, len(self.blocks)
        adopted = adopt_blocks(engine, self.sequence, blocks, tokens, prev, later=later)
        for i, cid in enumerate(adopted.cids):
            self._take_block(cid, tokens[i * size : (i + 1) * size])
        if adopted.cids:
            self._hidden = None
        exact = self.exact_blocks(adopted.cids)
        self.counts.executed += [
            taken(
                first + i, size, cid, tier, engine.geometry.block_bytes, approx=self.approx if i >= exact else None
            )
            for i, (cid, tier) in enumerate(zip(adopted.cids, adopted.tiers, strict=True))
        ]  # fmt: skip
        if adopted.miss:
            self._miss(adopted.miss)

    def _take_block(self, cid: Cid, tokens: Tokens[int]) -> None:
        parent = self._keys[-1] if self._keys else None
        self._keys.append(prefix_key(self.engine.model_cid, parent, tokens))
        self.tokens[self.boundary : self.boundary + len(tokens)] = tokens
        self.blocks.append(cid)

    def remember(self, sealed: Sealed) -> None:
        """Let other conversations find blocks of this one in the pool, if it still has them.

        They are stored, and their rows never change again.
        """
        if sealed.cids[0] not in self.blocks:
            return
        first = self.blocks.index(sealed.cids[0])
        nodes = {cid: data for cid, data in sealed.items if cid.codec == "dag-cbor"}
        for cid, row in zip(sealed.cids, self.sequence.table[first:], strict=False):
            if row != ARCHIVED:
                self.engine.residency.keep(cid, Block.decode(bytes(nodes[cid])), row)


def _leading(planned: list[BlockVerdict]) -> list[BlockVerdict]:
    ends = next((i for i, each in enumerate(planned) if not each.verdict.loads), len(planned))
    return planned[:ends]


def taken(
    index: int, size: int, cid: Cid, tier: Tier, block_bytes: int, *, approx: str | None = None
) -> BlockVerdict:  # fmt: skip
    """Say what was done with a block that was adopted; `approx` says why it is not exact."""
    if approx is not None:
        near = Approximation(cid, measured_error(approx), approx, 0 if tier is Tier.L0 else block_bytes, tier)
        return BlockVerdict(
            index, index * size, Verdict.RECONCILED, approx, cid, near.difference, load_bytes=near.load_bytes,
            tier=tier, error=near.error,
        )  # fmt: skip
    if tier is Tier.L0:
        return BlockVerdict(index, index * size, Verdict.HIT, "", cid, tier=tier)
    asked = Difference("tier", str(Tier.L0), str(tier))
    reason = f"in {tier}, asked for in {Tier.L0}"
    return BlockVerdict(index, index * size, Verdict.FAULT, reason, cid, asked, load_bytes=block_bytes, tier=tier)
